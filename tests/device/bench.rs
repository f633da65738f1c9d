//! `phalanx bench --memory device`, against the stand-ins.

use std::process::{Command, Output};

use crate::harness::{folder, text};

/// Runs it with two ranks; `None` where there is no stand-in.
fn bench(arguments: &[&str], variables: &[(&str, &str)]) -> Option<Output> {
    let mut command = Command::new("timeout");
    command.args(["100", env!("CARGO_BIN_EXE_phalanx"), "bench", "--memory", "device"]).args(arguments);
    command.env("PHALANX_LIBRARIES", folder()?).envs(variables.iter().copied());
    Some(command.output().expect("timeout of coreutils"))
}

#[test]
fn every_collective_is_measured_on_device_memory_and_right() {
    for collective in
        ["allreduce", "reduce", "broadcast", "allgather", "reduce_scatter", "alltoall", "gather", "scatter"]
    {
        for more in [&[][..], &["--in-place"]] {
            if more.len() == 1 && matches!(collective, "gather" | "scatter") {
                continue;
            }
            let sizes = ["--np", "2", "--bytes", "0,8,4096,3M", "--iters", "2", "--warmup", "1", "--json"];
            let Some(output) = bench(&[&[collective], &sizes[..], more].concat(), &[]) else { return };
            assert!(output.status.success(), "{collective}: {}", text(&output));
            let rows = String::from_utf8(output.stdout).expect("text");
            assert_eq!(rows.lines().count(), 4, "{rows}");
            for row in rows.lines() {
                assert!(row.contains(r#""memory":"device""#) && row.contains(r#""algorithm":"staged""#), "{row}");
                assert!(row.contains(r#""checked":2,"wrong":0"#), "{row}");
            }
        }
    }
}

/// As `kernels/check_device.sh` does on a device: a communicator of one rank, calls, and its end.
#[cfg(feature = "nccl")]
#[test]
fn one_rank_is_measured_over_nccl() {
    let Some(folders) = crate::over_nccl::folders() else { return };
    let variables = [("PHALANX_LIBRARIES", folders), ("PHALANX_DEVICE_COLLECTIVES", "nccl")];
    let sizes = ["allreduce", "--np", "1", "--bytes", "8:3M", "--iters", "3", "--warmup", "1", "--json"];
    let Some(output) = bench(&sizes, &variables) else { return };
    assert!(output.status.success(), "{}", text(&output));
    let rows = String::from_utf8(output.stdout).expect("text");
    assert!(rows.lines().count() > 5, "{rows}");
    for row in rows.lines() {
        assert!(row.contains(r#""transport":"nccl""#) && row.contains(r#""wrong":0"#), "{row}");
    }
}

#[test]
fn what_has_no_buffers_and_a_machine_without_devices_are_refused() {
    let Some(output) = bench(&["barrier"], &[]) else { return };
    assert!(text(&output).contains("barrier is not called on device memory"), "{}", text(&output));
    let Some(output) = bench(&["--bytes", "8"], &[("PHALANX_TEST_DEVICES", "0")]) else { return };
    assert!(!output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("there is no CUDA device"), "{}", text(&output));
}
