//! GPUs: what can be used of them, and why not.

use super::{Finding, bytes_in_words};

#[cfg(feature = "cuda")]
pub use crate::device::DevicesSeen;

/// What is known of devices in a build without them.
#[cfg(not(feature = "cuda"))]
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct DevicesSeen {}

pub(super) const PART: &str = "devices";

#[cfg(not(feature = "cuda"))]
pub(super) fn look() -> DevicesSeen {
    DevicesSeen {}
}

#[cfg(not(feature = "cuda"))]
pub(super) fn judge(_seen: &DevicesSeen, has_gpu: bool) -> Vec<Finding> {
    let _ = bytes_in_words;
    let text = "this build has no device code: collectives are on host memory";
    vec![if has_gpu {
        Finding::note(PART, "CUDA", text, "build with --features cuda,nccl to give collectives device memory")
    } else {
        Finding::ok(PART, "CUDA", text)
    }]
}

#[cfg(feature = "cuda")]
pub(super) fn look() -> DevicesSeen {
    crate::device::examine()
}

#[cfg(feature = "cuda")]
pub(super) fn judge(seen: &DevicesSeen, has_gpu: bool) -> Vec<Finding> {
    // Without a GPU nothing is amiss.
    let lacks = |name: &str, text: &str, advice: &str| {
        if has_gpu { Finding::note(PART, name, text, advice) } else { Finding::ok(PART, name, text) }
    };
    let mut findings = Vec::new();
    let advice = "see what the driver says; in a container: docker run --gpus all";
    match (&seen.driver, &seen.error) {
        (Some((library, version)), None) => {
            findings.push(Finding::ok(PART, "CUDA driver", format!("{library}, for CUDA up to {version}")));
        }
        (Some((library, _)), Some(error)) => {
            findings.push(Finding::note(PART, "CUDA driver", format!("{library}: {error}"), advice));
        }
        (None, error) => findings.push(lacks("CUDA driver", error.as_deref().unwrap_or("not found"), advice)),
    }
    for device in &seen.devices {
        let peers = match device.peers.as_slice() {
            [] => "reaches no other directly".to_owned(),
            peers => format!("reaches {peers:?} directly"),
        };
        let text = format!(
            "{}, compute capability {}.{}, {}, {} multiprocessors, {peers}{}",
            device.name,
            device.compute_capability.0,
            device.compute_capability.1,
            bytes_in_words(device.memory),
            device.multiprocessors,
            if device.dma_buf { ", dma-buf" } else { "" }
        );
        findings.push(Finding::ok(PART, format!("device {}", device.ordinal), text));
        let name = "its kernels";
        findings.push(match &device.kernels {
            Ok(from) => Finding::ok(PART, name, from.clone()),
            Err(why) => Finding::note(PART, name, format!("none: {why}"), "only host arithmetic is used until then"),
        });
    }
    for (name, found, error) in
        [("NVRTC", &seen.compiler, &seen.compiler_error), ("NCCL", &seen.nccl, &seen.nccl_error)]
    {
        findings.push(match (found, error) {
            (Some((library, version)), _) => Finding::ok(PART, name, format!("{version} ({library})")),
            (None, error) => lacks(
                name,
                error.as_deref().unwrap_or("not found"),
                "only what is in PHALANX_LIBRARIES is found beside the system's",
            ),
        });
    }
    findings.push(collectives(seen));
    findings
}

/// What carries collectives on device memory.
#[cfg(feature = "cuda")]
fn collectives(seen: &DevicesSeen) -> Finding {
    use crate::bootstrap::{DEVICE_COLLECTIVES, DeviceCollectives, Variables, settings};
    let name = DEVICE_COLLECTIVES.name;
    // A value that cannot be read is told with the other variables.
    let wish = settings(&Variables::of_process()).map(|settings| settings.device_collectives).unwrap_or_default();
    let staged = "through pinned host memory, over the transports below";
    let finding = |text: String| Finding::ok(PART, "collectives", text);
    match (wish, seen.nccl.is_some()) {
        _ if seen.devices.is_empty() => finding("no device: collectives are on host memory".into()),
        (DeviceCollectives::Staged, _) => finding(format!("device memory goes {staged}: {name}=staged")),
        (DeviceCollectives::Peer, _) => finding(format!(
            "{name}=peer: allreduces go over memory of peers, which all ranks of one host must reach; the rest goes {staged}"
        )),
        (DeviceCollectives::Auto, false) => finding(format!(
            "allreduces within a host go over memory of peers where all ranks reach each other's; the rest goes {staged}; \
             NCCL would carry it"
        )),
        (DeviceCollectives::Nccl, false) => Finding::note(
            PART,
            "collectives",
            format!("{name}=nccl, but there is no NCCL: collectives on device memory will fail"),
            format!("install NCCL, or set {name} to auto"),
        ),
        (DeviceCollectives::Auto, true) => finding(format!(
            "NCCL carries device memory where all ranks have the same and a device each; what it rounds otherwise than \
             host memory goes over memory of peers (allreduces within a host), or {staged}"
        )),
        (DeviceCollectives::Nccl, true) => {
            finding(format!("{name}=nccl: NCCL carries device memory, all that it knows; the rest goes {staged}"))
        }
    }
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::*;
    use crate::device::DeviceSeen;
    use crate::observe::doctor::State;

    #[test]
    fn what_lacks_is_a_note_only_where_there_is_a_gpu() {
        let seen = DevicesSeen { error: Some("no driver".into()), ..DevicesSeen::default() };
        let states = |has_gpu| judge(&seen, has_gpu).into_iter().map(|finding| finding.state).collect::<Vec<_>>();
        assert!(states(false).iter().all(|state| *state == State::Ok));
        assert_eq!(states(true), [State::Note, State::Note, State::Note, State::Ok]);
    }

    #[test]
    fn a_device_is_told_with_what_matters_of_it() {
        let device = DeviceSeen {
            ordinal: 1,
            name: "H100".into(),
            compute_capability: (9, 0),
            memory: 80 << 30,
            multiprocessors: 132,
            integrated: false,
            peers: vec![0],
            dma_buf: true,
            kernels: Ok("NVRTC 12.8".into()),
        };
        let without = DeviceSeen { kernels: Err("NVRTC was not found".into()), ..device.clone() };
        let driver = Some(("libcuda.so.1".into(), "12.8".into()));
        let findings = judge(&DevicesSeen { driver, devices: vec![device, without], ..DevicesSeen::default() }, true);
        let told = findings.iter().find(|finding| finding.name == "device 1").expect("the device");
        let expected = "H100, compute capability 9.0, 80 GiB, 132 multiprocessors, reaches [0] directly, dma-buf";
        assert_eq!(told.text, expected);
        let kernels: Vec<_> = findings.iter().filter(|finding| finding.name == "its kernels").collect();
        assert_eq!((kernels[0].text.as_str(), kernels[0].state), ("NVRTC 12.8", State::Ok));
        assert_eq!((kernels[1].text.as_str(), kernels[1].state), ("none: NVRTC was not found", State::Note));
        assert!(findings.last().is_some_and(|finding| finding.text.contains("NCCL would carry it")));
    }
}
