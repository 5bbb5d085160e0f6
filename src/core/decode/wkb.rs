//! Points as spatial databases write them: well-known binary (WKB), and PostGIS's extension of it with an SRID (EWKB).
//!
//! A byte order, a type, the SRID if a flag of the type says so, two 64-bit numbers: 21 or 25 bytes. Reading them takes less code
//! than adapting a library for all geometries, and anything else must be refused by its name.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use thiserror::Error;

use crate::base::geo::{BadPoint, GeoPoint};

/// Longitude and latitude in degrees (WGS 84).
const WGS_84: i64 = 4326;

/// Longer than a point of four dimensions with an SRID. Of a larger geometry only this much is decoded, to name it.
const MAX_BYTES: usize = 48;

/// Names of the geometry types, by their code; 0 is none.
const TYPES: [&str; 18] = [
    "",
    "Point",
    "LineString",
    "Polygon",
    "MultiPoint",
    "MultiLineString",
    "MultiPolygon",
    "GeometryCollection",
    "CircularString",
    "CompoundCurve",
    "CurvePolygon",
    "MultiCurve",
    "MultiSurface",
    "Curve",
    "Surface",
    "PolyhedralSurface",
    "TIN",
    "Triangle",
];

/// Why a geometry is not a location.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum BadGeometry {
    /// Another type than a point. Holds its name.
    #[error("it is a {0}, and a location is one point: write a Point, such as ST_PointOnSurface of it")]
    Shape(&'static str),
    /// More than longitude and latitude. Holds `Z`, `M` or `ZM`.
    #[error("it is a Point {0}, and a location has no {0}: write ST_Force2D of it")]
    Dimensions(&'static str),
    /// Other coordinates than degrees of WGS 84.
    #[error("its SRID is {0}, and only {WGS_84} is supported: write ST_Transform of it to {WGS_84}")]
    Srid(i64),
    /// Two SRIDs.
    #[error("its srid is {member}, but its wkb has the SRID {own}")]
    TwoSrids {
        /// Beside the binary.
        member: i64,
        /// In the binary.
        own: i64,
    },
    /// Debezium repeats the coordinates of some types.
    #[error("its x and y are not those of its wkb")]
    TwoPoints,
    /// A point without coordinates.
    #[error("it is an empty Point")]
    Empty,
    /// Not well-known binary. Holds what is wrong.
    #[error("it is not the well-known binary of a Point: {0}")]
    Binary(&'static str),
    /// Out of range.
    #[error(transparent)]
    Range(#[from] BadPoint),
}

/// A point before its SRID is checked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Wkb {
    x: f64,
    y: f64,
    /// As written; 0 stands for an unknown one.
    srid: u32,
}

/// The name of a geometry type as written anywhere, in any case.
pub(super) fn type_named(name: &str) -> Option<&'static str> {
    TYPES.into_iter().skip(1).find(|kind| kind.eq_ignore_ascii_case(name))
}

/// Whether a text is meant as hexadecimal: it begins with a byte order and is longer than any geohash.
pub(super) fn is_hex(text: &str) -> bool {
    text.len() > 12
        && (text.starts_with("00") || text.starts_with("01"))
        && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl Wkb {
    /// Reads hexadecimal text, as PostGIS prints a geometry.
    pub(super) fn from_hex(text: &str) -> Result<Self, BadGeometry> {
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if !rest.is_empty() {
            return Err(BadGeometry::Binary("it has half a byte"));
        }
        let bytes: Option<Vec<u8>> =
            pairs.iter().take(MAX_BYTES).map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect();
        Self::read(&bytes.ok_or(BadGeometry::Binary("it is not hexadecimal"))?)
    }

    /// Reads base64, as Debezium writes bytes into JSON.
    pub(super) fn from_base64(text: &str) -> Result<Self, BadGeometry> {
        let head = text.as_bytes().get(..MAX_BYTES / 3 * 4).unwrap_or(text.as_bytes());
        let bytes = STANDARD.decode(head);
        Self::read(&bytes.map_err(|_| BadGeometry::Binary("it is not base64"))?)
    }

    /// Reads a whole point.
    fn read(bytes: &[u8]) -> Result<Self, BadGeometry> {
        const HAS_Z: u32 = 1 << 31;
        const HAS_M: u32 = 1 << 30;
        const HAS_SRID: u32 = 1 << 29;
        let is_little = match bytes.first() {
            Some(0) => false,
            Some(1) => true,
            _ => return Err(BadGeometry::Binary("it does not begin with the byte order 0 or 1")),
        };
        let mut rest = &bytes[1..];
        let code = number(&mut rest, is_little, u32::from_be_bytes, u32::from_le_bytes)?;
        // The OGC's codes have the dimensions in thousands, PostGIS's in flags.
        let without_flags = code & !(HAS_Z | HAS_M | HAS_SRID);
        let (thousands, kind) = (without_flags / 1000, without_flags % 1000);
        match usize::try_from(kind).ok().and_then(|kind| TYPES.get(kind)) {
            Some(&"Point") => {}
            None | Some(&"") => return Err(BadGeometry::Binary("its type is unknown")),
            Some(other) => return Err(BadGeometry::Shape(other)),
        }
        let has = |flag, codes: [u32; 2]| code & flag != 0 || codes.contains(&thousands);
        match (has(HAS_Z, [1, 3]), has(HAS_M, [2, 3])) {
            (false, false) if thousands == 0 => {}
            (false, false) => return Err(BadGeometry::Binary("its type is unknown")),
            (true, false) => return Err(BadGeometry::Dimensions("Z")),
            (false, true) => return Err(BadGeometry::Dimensions("M")),
            (true, true) => return Err(BadGeometry::Dimensions("ZM")),
        }
        let srid = match code & HAS_SRID {
            0 => 0,
            _ => number(&mut rest, is_little, u32::from_be_bytes, u32::from_le_bytes)?,
        };
        let x = number(&mut rest, is_little, f64::from_be_bytes, f64::from_le_bytes)?;
        let y = number(&mut rest, is_little, f64::from_be_bytes, f64::from_le_bytes)?;
        match rest {
            [] => Ok(Self { x, y, srid }),
            _ => Err(BadGeometry::Binary("bytes follow the point")),
        }
    }

    /// The location, if its SRID is that of longitude and latitude, or not known. `member` is an SRID beside the binary.
    pub(super) fn location(self, member: Option<i64>) -> Result<GeoPoint, BadGeometry> {
        let known = |srid: i64| Some(srid).filter(|srid| *srid != 0);
        let srid = match (member.and_then(known), known(self.srid.into())) {
            (Some(member), Some(own)) if member != own => return Err(BadGeometry::TwoSrids { member, own }),
            (member, own) => member.or(own),
        };
        if let Some(other) = srid.filter(|srid| *srid != WGS_84) {
            return Err(BadGeometry::Srid(other));
        }
        if self.x.is_nan() && self.y.is_nan() {
            return Err(BadGeometry::Empty);
        }
        Ok(GeoPoint::new(self.y, self.x)?)
    }
}

/// Takes a number from the front of `rest`.
fn number<T, const N: usize>(
    rest: &mut &[u8],
    is_little: bool,
    big: fn([u8; N]) -> T,
    little: fn([u8; N]) -> T,
) -> Result<T, BadGeometry> {
    let (bytes, behind) = rest.split_first_chunk().ok_or(BadGeometry::Binary("it ends early"))?;
    *rest = behind;
    Ok(if is_little { little(*bytes) } else { big(*bytes) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(hex: &str) -> Result<(f64, f64), BadGeometry> {
        Wkb::from_hex(hex)?.location(None).map(|point| (point.lon(), point.lat()))
    }

    #[test]
    fn points_of_postgis_are_read_in_both_byte_orders() {
        for (hex, lon, lat) in [
            // SELECT ST_SetSRID(ST_Point(4, 5), 4326); the same with SRID 0
            ("0101000020E610000000000000000010400000000000001440", 4.0, 5.0),
            ("010100000000000000000010400000000000001440", 4.0, 5.0),
            ("0101000020e6100000aa60545227e02c408b6ce7fba9094940", 14.4378, 50.0755),
            // ST_AsEWKB(…, 'XDR'), ST_AsBinary(…, 'XDR')
            ("0020000001000010E6402CE027525460AA404909A9FBE76C8B", 14.4378, 50.0755),
            ("00000000013ff00000000000004000000000000000", 1.0, 2.0),
        ] {
            assert_eq!(at(hex), Ok((lon, lat)), "{hex}");
        }
        // Latitude first, by mistake.
        let exchanged = at("0101000020E61000009EFB613A637B4240CF2C0950D3735EC0");
        assert_eq!(exchanged, Err(BadGeometry::Range(BadPoint::Latitude(-121.809_772_5))));
    }

    #[test]
    fn what_debezium_writes_is_read_with_its_srid() {
        // MySQL: well-known binary; PostgreSQL: with the SRID in it.
        let mysql = Wkb::from_base64("AQEAAAAAAAAAAADwPwAAAAAAAPA/").unwrap();
        let one = GeoPoint::new(1.0, 1.0).unwrap();
        for srid in [None, Some(0), Some(4326)] {
            assert_eq!(mysql.location(srid), Ok(one), "{srid:?}");
        }
        assert_eq!(mysql.location(Some(3857)), Err(BadGeometry::Srid(3857)));
        let postgres = Wkb::from_base64("AQEAACDmEAAAzczMzMzMKkAAAAAAAEBKQA==").unwrap();
        for srid in [None, Some(0), Some(4326)] {
            assert_eq!(postgres.location(srid), Ok(GeoPoint::new(52.5, 13.4).unwrap()), "{srid:?}");
        }
        let two = BadGeometry::TwoSrids { member: 3857, own: 4326 };
        assert_eq!(postgres.location(Some(3857)), Err(two));
        // 'SRID=3187;POINT(174.9479 -36.7208)'::geometry
        let elsewhere = Wkb::from_base64("AQEAACBzDAAAHHxhMlXeZUB4eqUsQ1xCwA==").unwrap();
        for srid in [None, Some(3187)] {
            assert_eq!(elsewhere.location(srid), Err(BadGeometry::Srid(3187)));
        }
    }

    #[test]
    fn everything_else_is_refused_by_its_name() {
        use BadGeometry::{Binary, Dimensions, Empty, Shape, Srid};
        let line = "0105000020E610000001000000010200000002000000A779C7293A2465400B462575025A46C0C66D3480B7FC6440C3D32B65195246C0";
        for (hex, why) in [
            (line, Shape("MultiLineString")),
            ("010700000000000000", Shape("GeometryCollection")),
            ("0103000020E6100000", Shape("Polygon")),
            // POINT(1 1 1) with SRID 25830, in both byte orders; then as the OGC writes it
            ("01010000A0E6640000000000000000F03F000000000000F03F000000000000F03F", Dimensions("Z")),
            ("00A0000001000064E63FF00000000000003FF00000000000003FF0000000000000", Dimensions("Z")),
            ("01e9030000000000000000f03f00000000000000400000000000000840", Dimensions("Z")),
            ("01d1070000000000000000244000000000000041400000000000003740", Dimensions("M")),
            ("01b90b0000", Dimensions("ZM")),
            ("01010000c0000000000000f03f000000000000004000000000000008400000000000001040", Dimensions("ZM")),
            ("0101000020110F0000000000000000F03F0000000000000040", Srid(3857)),
            ("0101000020E6100000000000000000F87F000000000000F87F", Empty),
            ("0020000001000010E67FF80000000000007FF8000000000000", Empty),
            ("0200000001", Binary("it does not begin with the byte order 0 or 1")),
            ("", Binary("it does not begin with the byte order 0 or 1")),
            ("01", Binary("it ends early")),
            ("0101000000000000000000104000000000000014", Binary("it ends early")),
            ("01010000000000000000001040000000000000144000", Binary("bytes follow the point")),
            ("0100000000", Binary("its type is unknown")),
            ("0112000000", Binary("its type is unknown")),
            ("01a10f0000", Binary("its type is unknown")),
            ("0101000000000000000000104000000000000014401", Binary("it has half a byte")),
            ("0x01", Binary("it is not hexadecimal")),
        ] {
            assert_eq!(at(hex), Err(why), "{hex}");
        }
        for text in ["AQEAAAAAAAAAAADwPwAAAAAAAPA", "a b", "ä"] {
            assert_eq!(Wkb::from_base64(text), Err(Binary("it is not base64")), "{text}");
        }
        let megabytes = format!("AQUAACDmEAAA{}", "A".repeat(4 << 20));
        assert_eq!(Wkb::from_base64(&megabytes), Err(Shape("MultiLineString")));
    }

    #[test]
    fn one_is_told_what_to_write_instead() {
        for (hex, says) in [
            ("0103000020E6100000", "ST_PointOnSurface"),
            ("01e9030000", "ST_Force2D"),
            ("0101000020110F0000000000000000F03F0000000000000040", "ST_Transform of it to 4326"),
        ] {
            let error = at(hex).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    /// A point as bytes.
    fn written(lon: f64, lat: f64, srid: Option<u32>, is_little: bool) -> Vec<u8> {
        let code = 1 | srid.map_or(0, |_| 1 << 29);
        let of_u32 = |n: u32| if is_little { n.to_le_bytes() } else { n.to_be_bytes() };
        let of_f64 = |n: f64| if is_little { n.to_le_bytes() } else { n.to_be_bytes() };
        let mut bytes = vec![u8::from(is_little)];
        bytes.extend(of_u32(code));
        bytes.extend(srid.into_iter().flat_map(of_u32));
        bytes.extend([lon, lat].into_iter().flat_map(of_f64));
        bytes
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn a_point_is_read_as_it_was_written(
            lon in -180.0..=180.0_f64, lat in -90.0..=90.0_f64,
            srid in prop::sample::select(vec![None, Some(0), Some(4326)]), is_little: bool,
        ) {
            let bytes = written(lon, lat, srid, is_little);
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            let expected = GeoPoint::new(lat, lon).unwrap();
            prop_assert_eq!(Wkb::from_hex(&hex).unwrap().location(None), Ok(expected));
            prop_assert_eq!(Wkb::from_hex(&hex.to_uppercase()).unwrap().location(srid.map(i64::from)), Ok(expected));
            prop_assert_eq!(Wkb::from_base64(&STANDARD.encode(&bytes)).unwrap().location(None), Ok(expected));
            prop_assert!(is_hex(&hex));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..60), text in "\\PC{0,30}") {
            let location = |wkb: Result<Wkb, BadGeometry>| wkb.and_then(|wkb| wkb.location(None)).ok();
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            let by_hex = location(Wkb::from_hex(&hex));
            prop_assert_eq!(by_hex, location(Wkb::from_base64(&STANDARD.encode(&bytes))));
            prop_assert!(by_hex.is_none() || [21, 25].contains(&bytes.len()));
            let _ = (Wkb::from_hex(&text), Wkb::from_base64(&text));
        }
    }
}
