//! The schemas that one reader has used lately. Each has its own, so that no lock stands between partitions.

use std::sync::Arc;

use super::{Schema, SchemaId, Unreadable};

/// A topic rarely has more in use at once: a few versions of two schemas.
const RECENT: usize = 16;

/// The schemas that one reader has used lately, and the last one that it cannot have.
#[derive(Debug, Default)]
pub struct Schemas {
    /// What was used last comes first.
    recent: Vec<(SchemaId, Arc<Schema>)>,
    refused: Option<(SchemaId, Unreadable)>,
}

/// What there is no schema for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lacking {
    /// The registry has to be asked; see [`Schemas::learn`].
    NotAsked(SchemaId),
    /// It was asked.
    Refused(Unreadable),
}

impl Schemas {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The schema of this id. That there is none is told once, and then the registry is to be asked again: it may have been
    /// given one.
    ///
    /// # Errors
    /// See [`Lacking`].
    pub fn find(&mut self, id: SchemaId) -> Result<&Schema, Lacking> {
        if let Some(place) = self.recent.iter().position(|(known, _)| *known == id) {
            self.recent[..=place].rotate_right(1);
            return Ok(&self.recent[0].1);
        }
        match self.refused.take_if(|(refused, _)| *refused == id) {
            Some((_, why)) => Err(Lacking::Refused(why)),
            None => Err(Lacking::NotAsked(id)),
        }
    }

    /// What the registry said of a schema.
    pub fn learn(&mut self, id: SchemaId, looked: Result<Arc<Schema>, Unreadable>) {
        match looked {
            Ok(schema) => {
                self.recent.truncate(RECENT - 1);
                self.recent.insert(0, (id, schema));
            }
            Err(why) => self.refused = Some((id, why)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Fetched, Kind};
    use super::*;

    fn schema(id: u32) -> (SchemaId, Arc<Schema>) {
        let fetched = Fetched { kind: Kind::Json, text: "{}".into(), references: Vec::new() };
        (SchemaId(id), Arc::new(Schema::compile(SchemaId(id), &fetched).unwrap()))
    }

    #[test]
    fn what_was_not_used_for_the_longest_time_goes_first() {
        let mut schemas = Schemas::new();
        for (id, schema) in (0..16).map(schema) {
            schemas.learn(id, Ok(schema));
        }
        assert!(schemas.find(SchemaId(0)).is_ok());
        let (id, one_more) = schema(16);
        schemas.learn(id, Ok(one_more));
        assert!(schemas.find(SchemaId(0)).is_ok() && schemas.find(SchemaId(16)).is_ok());
        assert_eq!(schemas.find(SchemaId(1)).unwrap_err(), Lacking::NotAsked(SchemaId(1)));
        assert_eq!(schemas.recent.len(), 16);
    }

    #[test]
    fn that_there_is_no_schema_is_told_once_and_to_who_asked_for_it() {
        let mut schemas = Schemas::new();
        let why = Unreadable::UnknownSchema(SchemaId(7));
        schemas.learn(SchemaId(7), Err(why.clone()));
        assert_eq!(schemas.find(SchemaId(8)).unwrap_err(), Lacking::NotAsked(SchemaId(8)));
        assert_eq!(schemas.find(SchemaId(7)).unwrap_err(), Lacking::Refused(why));
        assert_eq!(schemas.find(SchemaId(7)).unwrap_err(), Lacking::NotAsked(SchemaId(7)));
    }
}
