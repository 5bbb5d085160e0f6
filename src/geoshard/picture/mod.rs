//! A map as an SVG picture, in equirectangular projection: geoshards over the outline of the land, load as colour.

use std::fmt::Write;

use super::describe::{MapDescription, ShardDescription};
use super::outline::Polygon;

/// The outline of the land as an SVG path, in tenths of a degree: see `README.md` beside it.
pub const LAND: &str = include_str!("land.svg.txt");

/// From light to dark.
const COLOURS: [&str; 6] = ["#e3f1ec", "#b5ddd0", "#88c8b6", "#57ae9c", "#27867b", "#0b5653"];
/// Loads over the mean at which the next colour begins.
const STEPS: [f64; 5] = [0.5, 0.9, 1.1, 1.5, 2.0];
/// Units of the picture per degree; those of the land are tenths.
const SCALE: f64 = 10.0;

/// The picture, 3600 units wide, to be shown at any size.
pub fn svg(description: &MapDescription, outlines: &[Vec<Polygon>]) -> String {
    let MapDescription { name, version, shards, .. } = description;
    let has_load = shards.iter().any(|shard| shard.load.is_some());
    let mut paths = String::new();
    for (index, (shard, polygons)) in shards.iter().zip(outlines).enumerate() {
        // Without load, neighbours along the curve get different colours.
        let colour = shard.load.map_or(COLOURS[index % 4], |load| colour(load.over_mean));
        // Writing to a string cannot fail.
        let _ = writeln!(
            paths,
            "<path fill=\"{colour}\" d=\"{}\"><title>{}</title></path>",
            path(polygons),
            text(&label(shard))
        );
    }
    let legend = if has_load { legend() } else { String::new() };
    let height = if has_load { 1900 } else { 1800 };
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"1800\" height=\"{}\" viewBox=\"0 0 3600 {height}\">\n\
         <title>{}</title>\n\
         <rect width=\"3600\" height=\"{height}\" fill=\"#fff\"/>\n\
         <g fill-rule=\"evenodd\" stroke=\"#12302d\" stroke-width=\"2\" stroke-linejoin=\"round\">\n{paths}</g>\n\
         <path fill=\"none\" stroke=\"#12302d\" stroke-opacity=\".55\" stroke-width=\"3\" d=\"{LAND}\"/>\n\
         <path fill=\"#f4f7f6\" fill-opacity=\".55\" fill-rule=\"evenodd\" pointer-events=\"none\" d=\"M0 0h3600v1800h-3600z{LAND}\"/>\n\
         {legend}</svg>\n",
        height / 2,
        text(&format!("{name}, version {version}: {} geoshards", shards.len())),
    )
}

fn colour(over_mean: f64) -> &'static str {
    COLOURS[STEPS.iter().filter(|&&step| over_mean >= step).count()]
}

fn label(shard: &ShardDescription) -> String {
    let name = &shard.shard;
    match shard.load {
        None => format!("{name}: {:.2} % of the globe", shard.share_of_globe * 100.0),
        Some(load) => format!("{name}: {:.3} of the mean load, {} points", load.over_mean, load.points),
    }
}

fn legend() -> String {
    let mut legend = "<g font-family=\"sans-serif\" font-size=\"44\" fill=\"#12302d\">\n".to_owned();
    legend.push_str("<text x=\"40\" y=\"1868\">load of a geoshard over the mean</text>\n");
    for (index, colour) in COLOURS.iter().enumerate() {
        let x = 820 + index * 440;
        let words = match index {
            0 => format!("below {}", STEPS[0]),
            _ if index == STEPS.len() => format!("{} and more", STEPS[index - 1]),
            _ => format!("{} to {}", STEPS[index - 1], STEPS[index]),
        };
        let _ = writeln!(
            legend,
            "<rect x=\"{x}\" y=\"1828\" width=\"60\" height=\"48\" fill=\"{colour}\" stroke=\"#12302d\"/>\
             <text x=\"{}\" y=\"1868\">{words}</text>",
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
            let _ = write!(path, "{command}{} {}", place(lon + 180.0), place(90.0 - lat));
        }
        path.push('z');
    }
    path
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
    use crate::base::ids::ShardId;
    use crate::geoshard::describe::show;
    use crate::geoshard::load::CellLoad;
    use crate::geoshard::map::GeoshardMap;
    use crate::geoshard::outline::outlines;

    fn map() -> GeoshardMap {
        let shard = |id| ShardId::new(id).unwrap();
        GeoshardMap::new(2, "a < b & \u{7}c", vec![(0, shard("a")), (2 << 61 | 1, shard("b"))]).unwrap()
    }

    #[test]
    fn every_geoshard_is_drawn_in_the_colour_of_its_load() {
        let loads = [CellLoad { load: 1.0, points: 3 }, CellLoad { load: 9.0, points: 4 }];
        let description = show(&map(), "p").with_loads(&loads);
        let picture = svg(&description, &outlines(&map()));
        assert!(picture.contains("a: 0.200 of the mean load, 3 points"));
        let first = picture.lines().find(|line| line.contains("a: 0.200")).unwrap();
        let second = picture.lines().find(|line| line.contains("b: 1.800")).unwrap();
        assert!(first.contains(COLOURS[0]) && second.contains(COLOURS[4]), "{first}\n{second}");
        assert!(picture.contains(LAND) && picture.contains("2 and more"));
        assert!(picture.contains("<title>a &lt; b &amp; c, version 2: 2 geoshards</title>"));

        let plain = svg(&show(&map(), "p"), &outlines(&map()));
        assert!(!plain.contains("2 and more") && plain.contains("a: 33.33 % of the globe"), "{plain}");
    }

    #[test]
    fn degrees_become_tenths_from_the_upper_left_corner() {
        let square = Polygon { shell: vec![(-180.0, 90.0), (0.5, 0.0), (180.0, -90.0)], holes: vec![] };
        assert_eq!(path(&[square]), "M0 0L1805 900L3600 1800z");
    }
}
