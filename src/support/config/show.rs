//! The effective configuration as TOML, for the log line at the start and for `geofold check`. Secrets are `***`.

use toml::{Table, Value};

use super::types::Config;

impl Config {
    /// Every key with the value that is in force, without keys that have no meaning with the configured group
    /// protocol. Secrets and secret librdkafka settings are shown as `***`.
    pub fn to_redacted_toml(&self) -> String {
        // Tests prove that these types serialize; a log line must not stop the process.
        let mut shown = Table::try_from(self).unwrap_or_default();
        if let Some(Value::Table(kafka)) = shown.get_mut("kafka") {
            for key in self.kafka.group_protocol.foreign_keys() {
                kafka.remove(*key);
            }
        }
        toml::to_string(&shown).unwrap_or_default()
    }
}
