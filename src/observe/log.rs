//! The log on standard error.
//!
//! The library emits events (`tracing`) and leaves what becomes of them to the program. The `phalanx` program, Python and
//! C have nobody else who could say, and have them written here.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::types::{Error, Result};

/// The variable that says what is logged.
const VARIABLE: &str = "PHALANX_LOG";

/// Has this process's events written to standard error from here on, as `PHALANX_LOG` says: `error`, `warn` (unless told
/// otherwise), `info`, `debug`, `trace`, or filters such as `phalanx::transport=debug`. Does nothing where the program has
/// a subscriber of its own.
///
/// # Errors
///
/// [`Error::Environment`]: the variable is set to something that is no filter.
pub fn log_to_stderr() -> Result<()> {
    let filter = match std::env::var(VARIABLE) {
        Ok(text) if !text.trim().is_empty() => filter(text.trim())?,
        _ => EnvFilter::new("warn"),
    };
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colour);
    // Refused where there is a subscriber already, which then is the program's own.
    let _ = subscriber.try_init();
    Ok(())
}

fn filter(text: &str) -> Result<EnvFilter> {
    EnvFilter::try_new(text).map_err(|error| {
        Error::environment(format_args!("{VARIABLE}={text}: {error}"), "try info, debug, or phalanx::transport=debug")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_filter_is_refused_with_a_hint() {
        assert!(filter("phalanx::transport=debug,warn").is_ok());
        let refused = filter("phalanx=loud").expect_err("loud is no level").to_string();
        assert!(refused.contains("PHALANX_LOG=phalanx=loud") && refused.contains("try info"), "{refused}");
    }
}
