//! The real compiler of kernels, where folders with its library are named: no GPU is needed to compile.

use std::path::Path;
use std::process::Command;

use phalanx::device::{Compiler, Part};

/// The folder of a Python package that has libnvrtc: `nvidia-cuda-nvrtc`, and `nvidia-cuda-nvrtc-cu12` for the older
/// one.
const FOLDERS: [&str; 2] = ["PHALANX_TEST_NVRTC", "PHALANX_TEST_NVRTC_12"];

/// What is compiled by the newer one and by the older one. Reductions take the most of a minute.
const CASES: [&[(Part, u32)]; 2] =
    [&[(Part::Others, 90), (Part::Others, 75), (Part::Reductions, 90)], &[(Part::Others, 75), (Part::Others, 90)]];

/// A kernel of each header.
const NAMES: [(Part, &[&str]); 2] = [
    (Part::Reductions, &["phx_reduce_sum_f32", "phx_reduce_bit_xor_bool", "phx_reduce_max_f8_e4m3"]),
    (
        Part::Others,
        &[
            "phx_scale_bf16",
            "phx_cast_f32_f8_e5m2",
            "phx_gather_pieces",
            "phx_adasum_products_f64",
            "phx_quantize_f16",
            "phx_count_wrong_8",
            "phx_peer_two_shot_f32",
        ],
    ),
];

#[test]
fn the_librarys_own_text_compiles_without_a_word() {
    for (which, folder) in FOLDERS.into_iter().enumerate() {
        let Ok(path) = std::env::var(folder) else {
            println!("skipped: {folder} names no folder with libnvrtc");
            continue;
        };
        let output = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "nvrtc::inside", "--nocapture"])
            .env("PHALANX_LIBRARIES", Path::new(&path))
            .env(crate::harness::SCENARIO, format!("nvrtc {which}"))
            .output()
            .expect("this program again");
        let text = crate::harness::text(&output);
        assert!(output.status.success() && text.matches("compiled for sm_").count() == CASES[which].len(), "{text}");
    }
}

/// In a process of its own, since the folder is told by the environment.
#[test]
fn inside() {
    let scenario = std::env::var(crate::harness::SCENARIO).unwrap_or_default();
    let Some(which) = scenario.strip_prefix("nvrtc ") else { return };
    let which: usize = which.parse().expect("set by the test that starts this");
    let compiler = Compiler::load().expect("NVRTC");
    let folder = std::env::var(FOLDERS[which]).expect("set by the test that starts this");
    assert!(compiler.library().starts_with(&folder), "{} was loaded", compiler.library());
    for &(part, architecture) in CASES[which] {
        let compiled = compiler.compile_kernels(part, architecture).expect("the kernels compile");
        assert_eq!(compiled.words, "", "NVRTC {} has something to say", compiler.version());
        assert!(compiled.binary.starts_with(b"\x7fELF"));
        // 190 is CUDA's machine.
        assert_eq!(compiled.binary[18..20], 190u16.to_le_bytes());
        let has = |name: &str| compiled.binary.windows(name.len() + 1).any(|at| at == [name.as_bytes(), &[0]].concat());
        for (of, names) in NAMES {
            assert!(names.iter().all(|name| has(name) == (of == part)), "{part:?} for sm_{architecture}");
        }
        println!("NVRTC {}: {part:?} compiled for sm_{architecture}", compiler.version());
    }
    let error = compiler.compile_kernels(Part::Others, 61_000).expect_err("no such architecture").to_string();
    assert!(error.contains("does not compile for sm_61000; its newest is sm_"), "{error}");
    let wrong = compiler.compile("__global__ void wrong() { nothing; }", &[], 90, &[]).expect_err("wrong").to_string();
    assert!(wrong.contains("NVRTC_ERROR_COMPILATION") && wrong.contains("nothing"), "{wrong}");
}
