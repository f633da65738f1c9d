//! The log of the `phalanx` program. The library emits events and leaves what becomes of them to the program.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// The variable that says what is logged: `error`, `warn`, `info`, `debug`, `trace`, or filters such as
/// `phalanx::transport=debug`.
const VARIABLE: &str = "PHALANX_LOG";

/// Logs to standard error from here on.
///
/// # Errors
///
/// The variable is set to something that is no filter.
pub fn install() -> Result<(), String> {
    let filter = match std::env::var(VARIABLE) {
        Ok(text) if !text.trim().is_empty() => EnvFilter::try_new(text.trim())
            .map_err(|error| format!("{VARIABLE}={text}: {error}; try info, debug, or phalanx::transport=debug"))?,
        _ => EnvFilter::new("warn"),
    };
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colour).init();
    Ok(())
}
