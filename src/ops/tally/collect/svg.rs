//! The cloud as a picture: values in the order of the alphabet, larger where more documents have them.

use std::fmt::Write;

use super::http::Tag;

const WIDTH: f64 = 960.0;
const MARGIN: f64 = 24.0;
const SMALLEST: f64 = 13.0;
const LARGEST: f64 = 54.0;
/// Of a character, in parts of the font's size: wide enough for most texts of a sans-serif face.
const CHARACTER: f64 = 0.58;
/// Characters of one value that are shown.
const LONGEST: usize = 40;
/// Dark enough to be read on white, and apart from each other.
const COLOURS: [&str; 5] = ["#1b4965", "#7a4419", "#2d6a4f", "#6a3d7a", "#9b2226"];

/// A picture of these values. Sizes follow the logarithm of the count, so that one giant leaves the others readable.
pub fn render(facet: &str, tags: &[Tag]) -> String {
    let logs = || tags.iter().map(|tag| logarithm(tag.count));
    let (low, high) = (logs().fold(f64::INFINITY, f64::min), logs().fold(0.0, f64::max));
    let mut tags: Vec<&Tag> = tags.iter().collect();
    tags.sort_by(|one, other| one.value.cmp(&other.value));

    let (mut x, mut y, mut line) = (MARGIN, MARGIN, Vec::new());
    let mut body = String::new();
    let mut flush = |line: &mut Vec<(f64, f64, usize, &Tag)>, y: &mut f64| {
        let tallest = line.iter().map(|(_, size, ..)| *size).fold(0.0, f64::max);
        *y += tallest;
        for (x, size, colour, tag) in line.drain(..) {
            let text = escape(&shown(&tag.value));
            // Writing to a text cannot fail.
            let _ = writeln!(
                body,
                r#"<text x="{x:.0}" y="{:.0}" font-size="{size:.0}" fill="{}">{text}<title>{}: {}</title></text>"#,
                *y,
                COLOURS[colour],
                escape(&tag.value),
                tag.count
            );
        }
        *y += tallest * 0.35;
    };
    for (number, tag) in tags.into_iter().enumerate() {
        let share = if high > low { (logarithm(tag.count) - low) / (high - low) } else { 0.5 };
        let size = SMALLEST + share * (LARGEST - SMALLEST);
        #[expect(clippy::cast_precision_loss, reason = "a text of 40 characters")]
        let width = shown(&tag.value).chars().count() as f64 * size * CHARACTER;
        if x + width > WIDTH - MARGIN && !line.is_empty() {
            flush(&mut line, &mut y);
            x = MARGIN;
        }
        line.push((x, size, number % COLOURS.len(), tag));
        x += width + size * 0.6;
    }
    flush(&mut line, &mut y);
    let height = y + MARGIN;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH:.0} {height:.0}\" width=\"{WIDTH:.0}\" \
         height=\"{height:.0}\" font-family=\"system-ui, sans-serif\" role=\"img\">\n<title>{}</title>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{body}</svg>\n",
        escape(facet)
    )
}

fn logarithm(count: i64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "only its size matters")]
    let count = count.max(1) as f64;
    count.ln()
}

fn shown(value: &str) -> String {
    if value.chars().count() <= LONGEST {
        return value.to_owned();
    }
    value.chars().take(LONGEST - 1).chain(['…']).collect()
}

/// For the text of an element; characters that XML has no place for become a replacement.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\u{FFFE}' | '\u{FFFF}' => escaped.push('\u{FFFD}'),
            control if control.is_control() => escaped.push('\u{FFFD}'),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(value: &str, count: i64) -> Tag {
        Tag { value: value.to_owned(), count }
    }

    #[test]
    fn more_documents_are_larger_letters_and_nothing_leaves_the_picture() {
        let tags: Vec<Tag> = (0..100).map(|n| tag(&format!("value number {n}"), 1 << (n % 20))).collect();
        let svg = render("tags", &tags);
        assert_eq!(svg.matches("<text ").count(), 100);
        let number = |line: &str, name: &str| -> f64 {
            let (_, rest) = line.split_once(&format!(" {name}=\"")).unwrap();
            rest.split('"').next().unwrap().parse().unwrap()
        };
        let height = number(svg.lines().next().unwrap(), "height");
        for line in svg.lines().filter(|line| line.starts_with("<text")) {
            assert!(number(line, "y") < height && number(line, "x") < WIDTH, "{line}");
        }
        let size = |value: &str| {
            number(svg.lines().find(|line| line.contains(&format!(">{value}<"))).unwrap(), "font-size")
        };
        assert!(size("value number 19") > size("value number 10"));
        assert!(size("value number 10") > size("value number 0"));
    }

    #[test]
    fn a_value_is_text_whatever_it_holds() {
        let svg = render("<&>", &[tag("<script>&\u{0}", 3), tag(&"x".repeat(500), 1)]);
        assert!(svg.contains("&lt;script&gt;&amp;\u{FFFD}") && !svg.contains("<script"), "{svg}");
        assert!(svg.contains('…'));
        assert!(render("tags", &[]).ends_with("</svg>\n"));
    }
}
