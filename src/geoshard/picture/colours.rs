//! Colours of geoshards: neighbours get different hues, load makes them darker.

use std::collections::BTreeSet;

/// Hues in degrees, far from each other.
const HUES: [f64; 8] = [172.0, 32.0, 262.0, 92.0, 334.0, 212.0, 58.0, 8.0];
const SATURATION: f64 = 0.46;
/// Lightness without load, and from light to dark load.
const PLAIN: f64 = 0.76;
const SHADES: [f64; 6] = [0.90, 0.80, 0.70, 0.59, 0.47, 0.35];
/// Loads over the mean at which the next shade begins.
pub(super) const STEPS: [f64; SHADES.len() - 1] = [0.5, 0.9, 1.1, 1.5, 2.0];

/// A hue for each geoshard, by its neighbours. Those with most of them choose first.
pub(super) fn hues(neighbours: &[BTreeSet<usize>]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..neighbours.len()).collect();
    order.sort_by_key(|shard| std::cmp::Reverse(neighbours[*shard].len()));
    let mut hues: Vec<Option<usize>> = vec![None; neighbours.len()];
    for (number, shard) in order.into_iter().enumerate() {
        let taken = |hue: &usize| neighbours[shard].iter().filter(|near| hues[**near] == Some(*hue)).count();
        // Of those that no neighbour has another one each time, or all geoshards would have the first few.
        let wanted = (0..HUES.len()).map(|step| (number + step) % HUES.len());
        hues[shard] = wanted.min_by_key(taken);
    }
    hues.into_iter().map(Option::unwrap_or_default).collect()
}

/// The colour of a hue of [`hues`], by its load over the mean if that is known.
pub(super) fn fill(hue: usize, over_mean: Option<f64>) -> String {
    let lightness = over_mean.map_or(PLAIN, |over_mean| SHADES[shade(over_mean)]);
    hex(HUES[hue % HUES.len()], SATURATION, lightness)
}

/// The shade of the legend, without a hue.
pub(super) fn grey(shade: usize) -> String {
    hex(0.0, 0.0, SHADES[shade % SHADES.len()])
}

fn shade(over_mean: f64) -> usize {
    STEPS.iter().filter(|&&step| over_mean >= step).count()
}

/// A colour as SVG knows it, from hue in degrees, saturation and lightness from 0 to 1.
fn hex(hue: f64, saturation: f64, lightness: f64) -> String {
    let amplitude = saturation * lightness.min(1.0 - lightness);
    let part = |n: f64| {
        let k = (n + hue / 30.0) % 12.0;
        let level = lightness - amplitude * (k - 3.0).min(9.0 - k).clamp(-1.0, 1.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 255")]
        let level = (level * 255.0).round() as u8;
        level
    };
    format!("#{:02x}{:02x}{:02x}", part(0.0), part(8.0), part(4.0))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::drawing::Grid;
    use super::*;
    use crate::geoshard::map::GeoshardMap;

    #[test]
    fn neighbours_of_the_sample_map_have_different_hues() {
        let map = GeoshardMap::load(Path::new("config/map-55.json")).unwrap();
        let neighbours = Grid::new(&map).neighbours(map.shards().len());
        let hues = hues(&neighbours);
        for (one, near) in neighbours.iter().enumerate() {
            assert!(near.iter().all(|other| hues[*other] != hues[one]), "{one}");
        }
        assert_eq!(hues.iter().collect::<BTreeSet<_>>().len(), HUES.len(), "all of them are used");
    }

    #[test]
    fn more_load_is_darker() {
        let shades: Vec<String> = [0.0, 0.5, 1.0, 1.2, 1.9, 7.0].map(|load| fill(0, Some(load))).into();
        let light = |colour: &String| u32::from_str_radix(&colour[3..5], 16).unwrap();
        assert!(shades.windows(2).all(|pair| light(&pair[0]) > light(&pair[1])), "{shades:?}");
    }

    #[test]
    fn hue_saturation_and_lightness_make_a_colour() {
        assert_eq!(hex(0.0, 1.0, 0.5), "#ff0000");
        assert_eq!(hex(120.0, 1.0, 0.25), "#008000");
        assert_eq!(hex(240.0, 0.5, 0.75), "#9f9fdf");
        assert_eq!(hex(0.0, 0.0, 1.0), "#ffffff");
    }
}
