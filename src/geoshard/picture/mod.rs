//! A map as a picture, in equirectangular projection: geoshards over the outline of the land, with names.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | the picture as SVG, and as an HTML page to zoom in |
//! | `drawing.rs` | geoshards as short paths, for the status page; who borders on whom |
//! | `colours.rs` | a hue for each geoshard, other than its neighbours'; darker with more load |
//! | `labels.rs` | names, where there is room |
//! | `density.rs` | where points are |
//! | `page.html` | what the HTML page has around the picture |

mod colours;
mod density;
mod drawing;
mod labels;

use std::fmt::Write;

pub use density::Density;
pub use drawing::MapDrawing;
pub use labels::MapLabel;

use self::colours::{STEPS, fill, grey, hues};
use self::drawing::Grid;
use self::labels::{CITY_SIZE, labels};
use super::cities::{City, largest};
use super::describe::{MapDescription, ShardDescription};
use super::map::GeoshardMap;
use super::outline::{Polygon, outlines};
use crate::base::figures::count;

/// The outline of the land as an SVG path, in tenths of a degree: see `README.md` beside it.
pub const LAND: &str = include_str!("land.svg.txt");

const PAGE: &str = include_str!("page.html");
/// Units of the picture per degree; those of the land are tenths.
const SCALE: f64 = 10.0;

/// The picture, 3600 units wide, to be shown at any size. `density`: where points are, if they were given.
pub fn svg(map: &GeoshardMap, description: &MapDescription, density: Option<&Density>) -> String {
    let has_load = description.shards.iter().any(|shard| shard.load.is_some());
    let (legend, height) = if has_load { (legend(), 1900) } else { (String::new(), 1800) };
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"1800\" height=\"{}\" viewBox=\"0 0 3600 {height}\">\n\
         <title>{}</title>\n<rect width=\"3600\" height=\"{height}\" fill=\"#fff\"/>\n{}{legend}</svg>\n",
        height / 2,
        text(&title(description)),
        globe(map, description, density),
    )
}

/// The picture as a page to zoom in, in one file that needs no network.
pub fn html(map: &GeoshardMap, description: &MapDescription, density: Option<&Density>) -> String {
    let has_load = description.shards.iter().any(|shard| shard.load.is_some());
    let legend = if has_load {
        format!("<svg id=\"legend\" viewBox=\"0 1810 3600 90\">{}</svg>", legend())
    } else {
        String::new()
    };
    // The title is last: a map's name may hold a placeholder, and ids of geoshards are in lower case.
    PAGE.replace("GLOBE", &globe(map, description, density))
        .replace("LEGEND", &legend)
        .replace("TITLE", &text(&title(description)))
}

fn title(description: &MapDescription) -> String {
    let MapDescription { name, version, shards, .. } = description;
    format!("{name}, version {version}: {} geoshards", count(shards.len() as u64))
}

/// The globe, without a frame: 3600 times 1800 units.
fn globe(map: &GeoshardMap, description: &MapDescription, density: Option<&Density>) -> String {
    let (grid, shards) = (Grid::new(map), &description.shards);
    let hues = hues(&grid.neighbours(shards.len()));
    let mut globe = "<g id=\"shards\" fill-rule=\"evenodd\" stroke=\"#12302d\" stroke-width=\"2\" \
                     stroke-linejoin=\"round\">\n"
        .to_owned();
    for ((shard, polygons), hue) in shards.iter().zip(outlines(map)).zip(hues) {
        let colour = fill(hue, shard.load.map(|load| load.over_mean));
        // Writing to a string cannot fail; the same below.
        let _ = writeln!(
            globe,
            "<path fill=\"{colour}\" d=\"{}\"><title>{}</title></path>",
            path(&polygons),
            text(&label(shard))
        );
    }
    // The sea is the frame minus the land.
    let _ = write!(
        globe,
        "</g>\n<g pointer-events=\"none\">\n\
         <path fill=\"#f4f7f6\" fill-opacity=\".5\" fill-rule=\"evenodd\" d=\"M0 0h3600v1800h-3600z{LAND}\"/>\n\
         <path fill=\"none\" stroke=\"#12302d\" stroke-opacity=\".55\" stroke-width=\"3\" d=\"{LAND}\"/>\n"
    );
    let levels = density.map(Density::paths).unwrap_or_default();
    for (level, path) in levels.iter().enumerate().filter(|(_, path)| !path.is_empty()) {
        let opacity = 0.25 + 0.2 * level as f64;
        let _ = writeln!(globe, "<path fill=\"#12302d\" fill-opacity=\"{opacity:.2}\" d=\"{path}\"/>");
    }
    for City(_, lat, lon, _) in largest(map).into_iter().flatten() {
        let _ = write!(globe, "<circle cx=\"{}\" cy=\"{}\" r=\"4\" fill=\"#12302d\"/>", x(*lon), y(*lat));
    }
    globe.push_str("\n</g>\n");
    globe.push_str(&names(&labels(map, &grid.interiors(shards.len()))));
    globe
}

/// Names of geoshards over cities; each knows its size, for a page that makes it smaller.
fn names(labels: &[MapLabel]) -> String {
    let mut names = "<g id=\"names\" font-family=\"sans-serif\" text-anchor=\"middle\" fill=\"#0a1f1d\" \
                     stroke=\"#fff\" stroke-opacity=\".85\" paint-order=\"stroke\" pointer-events=\"none\">\n"
        .to_owned();
    for MapLabel { id, city, at, size, .. } in labels {
        let size = size * SCALE;
        let city = city.map_or_else(String::new, |city| {
            format!("<tspan x=\"0\" dy=\"1.1em\" font-size=\"{CITY_SIZE}em\">{}</tspan>", text(city))
        });
        let baseline = if city.is_empty() { ".35em" } else { "-.1em" };
        let _ = writeln!(
            names,
            "<g transform=\"translate({} {})\"><text data-size=\"{size:.1}\" font-size=\"{size:.1}\" \
             stroke-width=\"{:.1}\"><tspan x=\"0\" dy=\"{baseline}\" font-weight=\"bold\">{}</tspan>{city}</text></g>",
            x(at.0),
            y(at.1),
            size / 8.0,
            text(id)
        );
    }
    names.push_str("</g>\n");
    names
}

fn label(shard: &ShardDescription) -> String {
    let around = shard.around.map_or_else(String::new, |city| format!(", around {city}"));
    match shard.load {
        None => format!("{}{around}: {:.2} % of the globe", shard.shard, shard.share_of_globe * 100.0),
        Some(load) => format!(
            "{}{around}: {:.3} of the mean load, {} points",
            shard.shard,
            load.over_mean,
            count(load.points)
        ),
    }
}

fn legend() -> String {
    let mut legend = "<g font-family=\"sans-serif\" font-size=\"44\" fill=\"#12302d\">\n".to_owned();
    legend.push_str("<text x=\"40\" y=\"1868\">load of a geoshard over the mean</text>\n");
    for shade in 0..=STEPS.len() {
        let x = 820 + shade * 440;
        let words = match shade {
            0 => format!("below {}", STEPS[0]),
            _ if shade == STEPS.len() => format!("{} and more", STEPS[shade - 1]),
            _ => format!("{} to {}", STEPS[shade - 1], STEPS[shade]),
        };
        let _ = writeln!(
            legend,
            "<rect x=\"{x}\" y=\"1828\" width=\"60\" height=\"48\" fill=\"{}\" stroke=\"#12302d\"/>\
             <text x=\"{}\" y=\"1868\">{words}</text>",
            grey(shade),
            x + 76
        );
    }
    legend.push_str("</g>\n");
    legend
}

fn path(polygons: &[Polygon]) -> String {
    let mut path = String::new();
    for ring in polygons.iter().flat_map(|polygon| std::iter::once(&polygon.shell).chain(&polygon.holes)) {
        for (index, &(lon, lat)) in ring.iter().enumerate() {
            let command = if index == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{command}{} {}", x(lon), y(lat));
        }
        path.push('z');
    }
    path
}

fn x(lon: f64) -> String {
    place(lon + 180.0)
}

fn y(lat: f64) -> String {
    place(90.0 - lat)
}

fn place(degrees: f64) -> String {
    let text = format!("{:.2}", degrees * SCALE);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Escapes text for XML, and drops characters that XML never allows.
fn text(text: &str) -> String {
    let allowed = |c: &char| !c.is_control();
    let text: String = text.chars().filter(allowed).collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::geo::GeoPoint;
    use crate::base::ids::ShardId;
    use crate::geoshard::describe::show;
    use crate::geoshard::load::CellLoad;

    fn map() -> GeoshardMap {
        let shard = |id| ShardId::new(id).unwrap();
        GeoshardMap::new(2, "a < b & \u{7}c", vec![(0, shard("a")), (2 << 61 | 1, shard("b"))]).unwrap()
    }

    #[test]
    fn every_geoshard_is_drawn_in_the_shade_of_its_load_and_named() {
        let loads = [CellLoad { load: 1.0, points: 3 }, CellLoad { load: 9.0, points: 4_000 }];
        let description = show(&map(), "p").with_loads(&loads);
        let picture = svg(&map(), &description, None);
        let (a, b) =
            ("a, around Delhi: 0.200 of the mean load, 3 points", "1.800 of the mean load, 4,000 points");
        let colour = |what: &str| {
            let line =
                picture.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("{picture}"));
            line.split('"').nth(1).unwrap().to_owned()
        };
        let hues = hues(&Grid::new(&map()).neighbours(2));
        assert_eq!((colour(a), colour(b)), (fill(hues[0], Some(0.2)), fill(hues[1], Some(1.8))));
        assert!(picture.contains(LAND) && picture.contains("2 and more"));
        assert!(picture.contains("<title>a &lt; b &amp; c, version 2: 2 geoshards</title>"));
        assert!(picture.contains(">Delhi</tspan>"), "{picture}");

        let plain = svg(&map(), &show(&map(), "p"), None);
        assert!(!plain.contains("2 and more") && plain.contains("a, around Delhi: 33.33 % of the globe"));
    }

    #[test]
    fn points_are_drawn_where_they_are() {
        let mut density = Density::default();
        density.add(GeoPoint::new(0.2, 0.2).unwrap());
        let drawn = "M1800 895h5v5h-5z";
        assert!(svg(&map(), &show(&map(), "p"), Some(&density)).contains(drawn));
        assert!(!svg(&map(), &show(&map(), "p"), None).contains(drawn));
    }

    #[test]
    fn a_page_is_one_file_with_the_same_globe() {
        let description = show(&map(), "p");
        let page = html(&map(), &description, None);
        assert!(page.contains(&globe(&map(), &description, None)));
        assert!(page.contains("<title>a &lt; b &amp; c, version 2: 2 geoshards</title>"));
        let named_globe = GeoshardMap::new(1, "GLOBE", vec![(0, ShardId::new("a").unwrap())]).unwrap();
        let named_globe = html(&named_globe, &show(&named_globe, "p"), None);
        assert!(named_globe.contains("<title>GLOBE, version 1: 1 geoshards</title>"));
        for needs in ["http://", "https://", "src=", "@import", "url(", "TITLE", "LEGEND", "GLOBE"] {
            assert!(!page.contains(needs), "{needs}");
        }
    }

    #[test]
    fn degrees_become_tenths_from_the_upper_left_corner() {
        let square = Polygon { shell: vec![(-180.0, 90.0), (0.5, 0.0), (180.0, -90.0)], holes: vec![] };
        assert_eq!(path(&[square]), "M0 0L1805 900L3600 1800z");
    }
}
