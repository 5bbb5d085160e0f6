//! A reader's recently used schemas. Each reader has its own, so that partitions share no lock.

use std::sync::Arc;

use super::{Schema, SchemaId, UnreadablePayload};

/// A topic rarely uses more at once: a few versions of two schemas.
const RECENT: usize = 16;

/// A reader's recently used schemas, and the last one that is unavailable.
#[derive(Debug, Default)]
pub struct Schemas {
    /// Most recently used first.
    recent: Vec<(SchemaId, Arc<Schema>)>,
    refused: Option<(SchemaId, UnreadablePayload)>,
}

/// Why there is no schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lacking {
    /// The registry must be asked; see [`Schemas::learn`].
    NotAsked(SchemaId),
    /// It was asked.
    Refused(UnreadablePayload),
}

impl Schemas {
    /// Without schemas.
    pub fn new() -> Self {
        Self::default()
    }

    /// The schema of this id. A missing schema is reported once; then the registry must be asked again, since it may
    /// have been added.
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

    /// Stores the registry's answer.
    pub fn learn(&mut self, id: SchemaId, looked: Result<Arc<Schema>, UnreadablePayload>) {
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
    use super::super::{Kind, RegisteredSchema};
    use super::*;

    fn schema(id: u32) -> (SchemaId, Arc<Schema>) {
        let fetched = RegisteredSchema { kind: Kind::Json, text: "{}".into(), references: Vec::new() };
        (SchemaId(id), Arc::new(Schema::compile(SchemaId(id), &fetched).unwrap()))
    }

    #[test]
    fn least_recently_used_schema_is_evicted() {
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
    fn missing_schema_is_reported_once_to_its_requester() {
        let mut schemas = Schemas::new();
        let why = UnreadablePayload::UnknownSchema(SchemaId(7));
        schemas.learn(SchemaId(7), Err(why.clone()));
        assert_eq!(schemas.find(SchemaId(8)).unwrap_err(), Lacking::NotAsked(SchemaId(8)));
        assert_eq!(schemas.find(SchemaId(7)).unwrap_err(), Lacking::Refused(why));
        assert_eq!(schemas.find(SchemaId(7)).unwrap_err(), Lacking::NotAsked(SchemaId(7)));
    }
}
