//! The load score of a point: a weighted sum of its columns, as named on the command line.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A weighted sum: `users`, `users + 0.5*active + 10*queries`, `1`.
#[derive(Debug, Clone, PartialEq)]
pub struct Weight {
    constant: f64,
    terms: Vec<(f64, String)>,
}

/// Not a weighted sum.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{term:?} is no part of a weighted sum: write COLUMN, NUMBER*COLUMN or NUMBER, with + between them")]
pub struct BadWeight {
    term: String,
}

/// Loads above this are taken for a mistake; sums stay exact enough below.
pub const MAX_LOAD: f64 = 1e15;

/// Why a point has no load.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum BadLoad {
    /// Not a number, not finite, negative, or too large.
    #[error("{column} is {value}, but a load is a number from 0 to {MAX_LOAD:e}")]
    Column {
        /// Which column.
        column: String,
        /// The value.
        value: f64,
    },
    /// The sum of columns that are each allowed.
    #[error("the load is {0:e}, above {MAX_LOAD:e}")]
    Sum(f64),
}

impl Weight {
    /// The columns that it needs, in the order of [`Weight::of`]'s values.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.terms.iter().map(|(_, column)| column.as_str())
    }

    /// The load of a point with these values in [`Weight::columns`].
    pub fn of(&self, values: &[f64]) -> Result<f64, BadLoad> {
        let mut load = self.constant;
        for ((factor, column), &value) in self.terms.iter().zip(values) {
            if !(0.0..=MAX_LOAD).contains(&value) {
                return Err(BadLoad::Column { column: column.clone(), value });
            }
            load += factor * value;
        }
        if load <= MAX_LOAD { Ok(load) } else { Err(BadLoad::Sum(load)) }
    }
}

impl Default for Weight {
    /// Each point counts as 1.
    fn default() -> Self {
        Self { constant: 1.0, terms: Vec::new() }
    }
}

impl FromStr for Weight {
    type Err = BadWeight;

    fn from_str(text: &str) -> Result<Self, BadWeight> {
        let mut weight = Self { constant: 0.0, terms: Vec::new() };
        for term in text.split('+').map(str::trim) {
            let bad = || BadWeight { term: term.to_owned() };
            let number = |text: &str| {
                let number = text.trim().parse::<f64>().ok();
                number.filter(|number| (0.0..=MAX_LOAD).contains(number))
            };
            let (factor, column) = match term.split_once('*') {
                Some((factor, column)) => (number(factor).ok_or_else(bad)?, column.trim()),
                None => (1.0, term),
            };
            let is_number = column.parse::<f64>().is_ok();
            match number(column) {
                _ if column.is_empty() || column.contains('*') => return Err(bad()),
                Some(constant) if column == term => weight.constant += constant,
                _ if is_number => return Err(bad()),
                _ => weight.terms.push((factor, column.to_owned())),
            }
        }
        Ok(weight)
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let terms = self.terms.iter().map(|(factor, column)| match factor {
            1.0 => column.clone(),
            _ => format!("{factor}*{column}"),
        });
        let constant = (self.constant != 0.0 || self.terms.is_empty()).then(|| self.constant.to_string());
        f.write_str(&terms.chain(constant).collect::<Vec<_>>().join(" + "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weight(text: &str) -> Weight {
        text.parse().unwrap()
    }

    #[test]
    fn a_weighted_sum_is_read_and_counted() {
        for (text, values, load) in [
            ("1", &[][..], 1.0),
            ("users", &[7.0], 7.0),
            ("users + 0.5*active_users+10 * queries", &[1.0, 4.0, 2.0], 23.0),
            ("2 + 1e1*stats.queries", &[0.1], 3.0),
        ] {
            assert_eq!(weight(text).of(values), Ok(load), "{text}");
        }
        assert_eq!(weight("users + 0.5*b.c").columns().collect::<Vec<_>>(), ["users", "b.c"]);
        assert_eq!(weight(" users+  0.5* b + 2").to_string(), "users + 0.5*b + 2");
        assert_eq!((Weight::default().to_string(), weight("1")), ("1".to_owned(), Weight::default()));
    }

    #[test]
    fn invalid_weighted_sum_is_refused() {
        for text in
            ["", "+", "users +", "-1*users", "-1", "NaN", "inf*users", "a*b*c", "2*", "*a", "a*2", "2*3"]
        {
            assert!(text.parse::<Weight>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_column_that_is_no_load_is_named() {
        for value in [f64::NAN, -1.0, f64::INFINITY, 2e15] {
            let error = weight("a + users").of(&[1.0, value]).unwrap_err().to_string();
            assert!(error.starts_with("users is"), "{error}");
        }
        assert!(weight("9*a").of(&[1e15]).unwrap_err().to_string().contains("the load is"));
    }
}
