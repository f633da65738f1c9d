//! The text of the kernels, and how it is compiled.

/// What is compiled: it includes all the rest.
pub(super) const SOURCE: &str = include_str!("../../kernels/phalanx.cu");

/// What is included, by name.
pub(super) const HEADERS: [(&str, &str); 10] = [
    ("adasum.cuh", include_str!("../../kernels/adasum.cuh")),
    ("base.cuh", include_str!("../../kernels/base.cuh")),
    ("cast.cuh", include_str!("../../kernels/cast.cuh")),
    ("check.cuh", include_str!("../../kernels/check.cuh")),
    ("numbers.cuh", include_str!("../../kernels/numbers.cuh")),
    ("pack.cuh", include_str!("../../kernels/pack.cuh")),
    ("peer.cuh", include_str!("../../kernels/peer.cuh")),
    ("quantize.cuh", include_str!("../../kernels/quantize.cuh")),
    ("reduce.cuh", include_str!("../../kernels/reduce.cuh")),
    ("scale.cuh", include_str!("../../kernels/scale.cuh")),
];

/// What the compiler is told. Contraction would round `a * b + c` once, where the host rounds twice.
pub(super) const OPTIONS: [&str; 2] = ["--std=c++17", "--fmad=false"];

/// The kernels are compiled in two parts, since one takes nine tenths of the time and is not needed by all who need the
/// other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// `phx_reduce_OP_TYPE`.
    Reductions,
    /// All others, those over memory of peers among them.
    Others,
}

impl Part {
    /// The part that has a kernel.
    pub(super) fn of(kernel: &str) -> Self {
        if kernel.starts_with("phx_reduce_") { Self::Reductions } else { Self::Others }
    }

    /// What tells the compiler.
    pub(super) fn option(self) -> &'static str {
        match self {
            Self::Reductions => "-DPHX_PART=1",
            Self::Others => "-DPHX_PART=2",
        }
    }
}

/// Threads of a block: what is meant for every kernel, and what those want whose threads meet.
pub(super) const THREADS: u32 = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    fn folder() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels")
    }

    #[test]
    fn every_header_is_in_the_library() {
        let entries = fs::read_dir(folder()).unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        let there: BTreeSet<_> = names.filter(|name| name.ends_with(".cuh")).collect();
        let here: BTreeSet<_> = HEADERS.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(here, there);
        let included = HEADERS.iter().map(|(_, text)| *text).chain([SOURCE]).flat_map(str::lines);
        for line in included.filter_map(|line| line.strip_prefix("#include \"")) {
            assert!(here.contains(line.trim_end_matches('"')), "{line} is included, and not in the library");
        }
        let base = HEADERS.iter().find(|(name, _)| *name == "base.cuh").unwrap().1;
        assert!(base.contains(&format!("#define PHX_THREADS {THREADS}\n")));
    }

    #[test]
    fn whoever_compiles_the_kernels_rounds_twice() {
        let of = |text: &str, starts: &str| {
            let lines: Vec<_> = text.lines().filter(|line| line.trim_start().starts_with(starts)).collect();
            assert!(!lines.is_empty(), "no line starts with {starts}");
            assert!(lines.iter().all(|line| line.contains("-fmad=false") && line.contains("-std=c++17")), "{lines:?}");
        };
        of(&fs::read_to_string(folder().join("build.py")).unwrap(), "OPTIONS = ");
        of(&fs::read_to_string(folder().join("check_device.sh")).unwrap(), "nvcc ");
        assert!(OPTIONS.contains(&"--fmad=false") && OPTIONS.contains(&"--std=c++17"));
    }
}
