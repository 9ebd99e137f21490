//! Where values come from: flags, then `BATON_*` environment, then the TOML file, then defaults.
//!
//! clap resolves the first two into the argument structs, whose fields are all optional; this module
//! lays them over a section of the file. Defaults are filled in where a command validates its arguments.

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::exit::Failure;

/// Largest configuration file.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// A parsed configuration file; empty when none is named.
pub(crate) struct File {
    name: String,
    table: toml::Table,
}

impl File {
    /// Reads the file, if one is named.
    pub(crate) fn read(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path else {
            return Ok(Self { name: String::new(), table: toml::Table::new() });
        };
        let name = path.display().to_string();
        let length = std::fs::metadata(path)
            .map_err(|error| Failure::usage(format!("cannot read configuration {name}: {error}")))?
            .len();
        if length > MAX_FILE_BYTES {
            return Err(Failure::usage(format!(
                "configuration {name} has {length} bytes, at most {MAX_FILE_BYTES} are read"
            )));
        }
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::usage(format!("cannot read configuration {name}: {error}")))?;
        let table = text
            .parse()
            .map_err(|error| Failure::usage(format!("configuration {name}: {error}")))?;
        Ok(Self { name, table })
    }

    /// `args` over the file's section: what a flag or the environment has set wins.
    pub(crate) fn layer<T>(&self, section: &str, args: &T) -> Result<T, Failure>
    where
        T: Serialize + DeserializeOwned,
    {
        let wrong = |error: String| {
            Failure::usage(format!("configuration {} section [{section}]: {error}", self.name))
        };
        let mut merged = match self.table.get(section) {
            None => toml::Table::new(),
            Some(toml::Value::Table(table)) => table.clone(),
            Some(other) => return Err(wrong(format!("is a {}, expected a table", other.type_str()))),
        };
        // Checked alone first, so that a mistake is blamed on the file and not on a flag.
        T::deserialize(merged.clone()).map_err(|error| wrong(error.to_string()))?;
        let over = toml::Table::try_from(args).map_err(|error| wrong(error.to_string()))?;
        merged.extend(over);
        T::deserialize(merged).map_err(|error| wrong(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::StatusArgs;

    fn file(text: &str) -> File {
        File { name: "test.toml".into(), table: text.parse().expect("valid TOML") }
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_nothing() {
        let file = file("[status]\nconnect = \"file:1\"\nformat = \"json\"\n");
        let flags = StatusArgs { connect: Some("flag:2".into()), format: None };
        let merged = file.layer("status", &flags).expect("layers");
        assert_eq!(merged.connect.as_deref(), Some("flag:2"));
        assert_eq!(merged.format, Some(crate::args::Format::Json));
    }

    #[test]
    fn unknown_keys_are_refused_by_name() {
        let file = file("[status]\nconect = \"x\"\n");
        let flags = StatusArgs { connect: None, format: None };
        let failure = file.layer("status", &flags).map(|_| ()).expect_err("a typo must not pass");
        assert!(format!("{failure:?}").contains("conect"), "{failure:?}");
    }
}
