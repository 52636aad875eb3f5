//! What every command is given: the environment as it was at the start, and where words go.

use std::path::PathBuf;

use crate::cli::Global;
use crate::config::{self, Config, EnvironmentMap};
use crate::exit::Failure;
use crate::output::Output;

pub(crate) struct Context {
    pub(crate) config_path: PathBuf,
    pub(crate) environment: EnvironmentMap,
    pub(crate) output: Output,
    pub(crate) verbose: u8,
}

impl Context {
    pub(crate) fn new(global: Global) -> Self {
        // Names and values that are not UTF-8 cannot be written in a YAML file either.
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Self {
            config_path: global.config,
            environment,
            output: Output {
                format: global.output,
                quiet: global.quiet,
            },
            verbose: global.verbose,
        }
    }

    /// The resolved configuration.
    pub(crate) fn config(&self) -> Result<Config, Failure> {
        Ok(config::load(&self.config_path, &self.environment)?)
    }
}
