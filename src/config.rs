//! Where values come from: flags, then `BATON_*` environment, then the TOML file, then defaults.
//!
//! clap resolves the first two into the argument structs, whose fields are all optional; this module
//! lays them over a section of the file. Defaults are filled in where a command validates its arguments.

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::exit::Failure;
use crate::small_file;

/// Largest configuration file.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Sections that a file may have, one per command.
const SECTIONS: [&str; 12] = [
    "up",
    "router",
    "prefill",
    "decode",
    "generate",
    "trace",
    "status",
    "drain",
    "health",
    "top",
    "bench_serve",
    "bench_engine",
];

/// A parsed configuration file; empty when none is named.
#[derive(Debug)]
pub(crate) struct File {
    /// Empty when there is none.
    name: String,
    sections: Map<String, Value>,
}

impl File {
    /// Reads the file, if one is named.
    pub(crate) fn read(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path else {
            return Ok(Self {
                name: String::new(),
                sections: Map::new(),
            });
        };
        let text = small_file::read(path, MAX_FILE_BYTES).map_err(|error| {
            Failure::usage(format!("configuration {}: {error}", path.display()))
        })?;
        Self::parse(path.display().to_string(), &text)
    }

    fn parse(name: String, text: &str) -> Result<Self, Failure> {
        let wrong = |error: String| Failure::usage(format!("configuration {name}: {error}"));
        let sections: Map<String, Value> =
            toml::from_str(text).map_err(|error| wrong(error.to_string()))?;
        if let Some(unknown) = sections
            .keys()
            .find(|key| !SECTIONS.contains(&key.as_str()))
        {
            return Err(wrong(format!(
                "[{unknown}] is no section; there are {}",
                SECTIONS.join(", ")
            )));
        }
        Ok(Self { name, sections })
    }

    /// `args` over the file's section: what a flag or the environment has set wins. Of each group in
    /// `exclusive`, the file's values are dropped when `args` sets any of the group.
    pub(crate) fn layer<T>(
        &self,
        section: &str,
        args: &T,
        exclusive: &[&[&str]],
    ) -> Result<T, Failure>
    where
        T: Serialize + DeserializeOwned,
    {
        let wrong = |error: &dyn std::fmt::Display| {
            Failure::usage(format!(
                "configuration {} section [{section}]: {error}",
                self.name
            ))
        };
        let mut merged = match self.sections.get(section) {
            None => Map::new(),
            Some(Value::Object(table)) => table.clone(),
            Some(_) => return Err(wrong(&"is not a table")),
        };
        // Checked alone first, so that a mistake is blamed on the file and not on a flag.
        T::deserialize(Value::Object(merged.clone())).map_err(|error| wrong(&error))?;
        let Value::Object(over) = to_value(args)? else {
            return Err(Failure::failed("arguments are not a table"));
        };
        for group in exclusive {
            if group.iter().any(|key| over.contains_key(*key)) {
                merged.retain(|key, _| !group.contains(&key.as_str()));
            }
        }
        merged.extend(over);
        T::deserialize(Value::Object(merged)).map_err(|error| Failure::usage(error.to_string()))
    }
}

fn to_value(args: &impl Serialize) -> Result<Value, Failure> {
    serde_json::to_value(args).map_err(|error| Failure::usage(format!("arguments: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Format, GenerateArgs, StatusArgs, WorkerArgs};

    fn file(text: &str) -> File {
        File::parse("test.toml".into(), text).expect("valid TOML")
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_nothing() {
        let file = file("[status]\nconnect = \"file:1\"\nformat = \"json\"\n");
        let flags = StatusArgs {
            connect: Some("flag:2".into()),
            ..StatusArgs::default()
        };
        let merged = file.layer("status", &flags, &[]).expect("layers");
        assert_eq!(merged.connect.as_deref(), Some("flag:2"));
        assert_eq!(merged.format, Some(Format::Json));
    }

    #[test]
    fn unknown_keys_and_sections_are_refused_by_name() {
        let flags = StatusArgs::default();
        let failure = file("[status]\nconect = \"x\"\n").layer("status", &flags, &[]);
        let failure = failure.map(|_| ()).expect_err("a typo must not pass");
        assert!(format!("{failure:?}").contains("conect"), "{failure:?}");
        let failure = File::parse("test.toml".into(), "[roter]\n").map(|_| ());
        assert!(format!("{failure:?}").contains("roter"), "{failure:?}");
    }

    #[test]
    fn shared_arguments_are_keys_of_their_section() {
        let flags = WorkerArgs::default();
        let text = "[decode]\nmembership = \"etcd:a:1\"\netcd_prefix = \"p\"\netcd_lease_s = 3\n";
        let merged = file(text).layer("decode", &flags, &[]).expect("layers");
        assert_eq!(merged.etcd.etcd_prefix.as_deref(), Some("p"));
        assert_eq!(merged.etcd_lease_s, Some(3));
        let wrong = file("[decode]\netcd_prefx = \"p\"\n").layer("decode", &flags, &[]);
        let failure = wrong.map(|_| ()).expect_err("a typo must not pass");
        assert!(format!("{failure:?}").contains("etcd_prefx"), "{failure:?}");
    }

    #[test]
    fn every_seed_survives() {
        let flags = GenerateArgs {
            seed: Some(u64::MAX),
            ..GenerateArgs::default()
        };
        let merged = file("").layer("generate", &flags, &[]).expect("layers");
        assert_eq!(merged.seed, Some(u64::MAX));
    }

    #[test]
    fn a_flag_replaces_what_excludes_it_in_the_file() {
        let file = file("[generate]\nprompt = \"from the file\"\nmax_tokens = 3\n");
        let flags = GenerateArgs {
            chat: Some("from the flag".into()),
            ..GenerateArgs::default()
        };
        let merged = file
            .layer("generate", &flags, &[&["prompt", "chat"]])
            .expect("layers");
        assert_eq!((merged.prompt, merged.max_tokens), (None, Some(3)));
        assert_eq!(merged.chat.as_deref(), Some("from the flag"));
    }
}
