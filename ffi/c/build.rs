//! Writes `phalanx.h` from the sources, so that the header cannot say anything else than they do.

use std::path::PathBuf;

/// The files with something for the header, in the order in which it is to be read.
const SOURCES: [&str; 8] = ["status", "codes", "communicator", "memory", "call", "blocking", "started", "handle"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?);
    let output = PathBuf::from(std::env::var("OUT_DIR")?);
    println!("cargo:rerun-if-changed=cbindgen.toml");
    let mut builder = cbindgen::Builder::new().with_config(cbindgen::Config::from_file(root.join("cbindgen.toml"))?);
    for source in SOURCES {
        println!("cargo:rerun-if-changed=src/{source}.rs");
        builder = builder.with_src(root.join("src").join(source).with_extension("rs"));
    }
    builder.generate()?.write_to_file(output.join("phalanx.h"));
    Ok(())
}
