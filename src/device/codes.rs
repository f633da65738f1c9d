//! What the codes of the driver, of NVRTC and of NCCL mean, and what to do about them.

use cudarc::driver::sys::CUresult;

use crate::types::Error;

/// A call of the driver that failed. `name` is what the driver calls the code, if it says so.
pub(super) fn driver_error(call: &str, code: u32, name: Option<&str>, about: &str) -> Error {
    let known = HINTS.iter().find(|(known, ..)| *known as u32 == code);
    let given = known.map(|(known, _)| format!("{known:?}"));
    let name = name.map(str::to_owned).or(given).unwrap_or_else(|| "an unknown code".into());
    let hint =
        known.map_or("see NVIDIA's list of the driver's result codes, and dmesg for the device", |known| known.1);
    let about = if about.is_empty() { String::new() } else { format!(" ({about})") };
    Error::environment(format_args!("{call} failed with {name}, code {code}{about}"), hint)
}

/// The context is of no more use after these: every later call returns the same.
const LOST: &str = "a kernel or copy of this process did what it must not; its context is lost: run compute-sanitizer, and restart \
                    the process";

const DEVICE: &str = "the device has a fault: see dmesg for Xid lines, take the device out, and restart the process";

/// The codes that have a remedy of their own. Their names are those of the driver's own list.
const HINTS: &[(CUresult, &str)] = &[
    (
        CUresult::CUDA_ERROR_INVALID_VALUE,
        "a pointer, length or stream given to Phalanx is not one of this device: give device memory and streams of the same device",
    ),
    (
        CUresult::CUDA_ERROR_OUT_OF_MEMORY,
        "free device memory or ask for less; nvidia-smi shows who holds it. Pinned host memory also needs room under the \
         container's limit",
    ),
    (CUresult::CUDA_ERROR_NOT_INITIALIZED, "the driver was not initialised: open the device before using its memory"),
    (CUresult::CUDA_ERROR_DEINITIALIZED, "the process is ending; make no calls on devices after main has returned"),
    (
        CUresult::CUDA_ERROR_STUB_LIBRARY,
        "a stub of libcuda was loaded: take the toolkit's stubs folder out of LD_LIBRARY_PATH",
    ),
    (CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE, "another process has the device to itself: see nvidia-smi -q -d COMPUTE"),
    (CUresult::CUDA_ERROR_NO_DEVICE, "no device is visible: see nvidia-smi and CUDA_VISIBLE_DEVICES"),
    (CUresult::CUDA_ERROR_INVALID_DEVICE, "give a device number below the count that phalanx doctor shows"),
    (CUresult::CUDA_ERROR_INVALID_IMAGE, "the kernels' file is damaged: delete the cache's folder kernels"),
    (
        CUresult::CUDA_ERROR_INVALID_CONTEXT,
        "the device's context is gone: it was reset (cudaDeviceReset), or the process was forked after using it",
    ),
    (
        CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU,
        "the kernels were built for other architectures: unset the prebuilt file, so that they are compiled for this device",
    ),
    (CUresult::CUDA_ERROR_ECC_UNCORRECTABLE, DEVICE),
    (
        CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
        "these devices cannot reach each other's memory: see nvidia-smi topo -m",
    ),
    (CUresult::CUDA_ERROR_INVALID_PTX, "the driver is older than the compiler (NVRTC): update the driver"),
    (CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "the driver is older than the compiler (NVRTC): update the driver"),
    (CUresult::CUDA_ERROR_OPERATING_SYSTEM, "see the limits on locked memory (ulimit -l), open files, and dmesg"),
    (CUresult::CUDA_ERROR_INVALID_HANDLE, "a stream or event given to Phalanx is gone or of another device"),
    (CUresult::CUDA_ERROR_NOT_FOUND, "the kernels' file has no such kernel: delete the cache's folder kernels"),
    (CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, LOST),
    (
        CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
        "the kernel needs more registers or shared memory than the device has: please report this with the device's name",
    ),
    (CUresult::CUDA_ERROR_LAUNCH_TIMEOUT, "the display's watchdog ended a kernel: use a device without a display"),
    (CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED, "the device's context is gone: restart the process"),
    (CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR, LOST),
    (CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION, LOST),
    (CUresult::CUDA_ERROR_MISALIGNED_ADDRESS, LOST),
    (CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE, LOST),
    (CUresult::CUDA_ERROR_INVALID_PC, LOST),
    (CUresult::CUDA_ERROR_LAUNCH_FAILED, LOST),
    (
        CUresult::CUDA_ERROR_NOT_PERMITTED,
        "a stream is being captured into a graph, where this call cannot be: call outside the capture",
    ),
    (
        CUresult::CUDA_ERROR_NOT_SUPPORTED,
        "this device, driver or machine (a virtual GPU, WSL) does not support the call",
    ),
    (
        CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
        "the kernel module and libcuda are of different versions: restart the machine after the driver's update; in a \
         container, take out its own libcuda",
    ),
    (
        CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE,
        "the forward-compatibility libcuda does not know this device: take it out",
    ),
    (
        CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        "a stream is being captured into a graph, which no collective can be in: call outside the capture",
    ),
    (CUresult::CUDA_ERROR_UNKNOWN, "see dmesg; load the kernel module (nvidia-modprobe -u), or restart the machine"),
];

/// The code that says that an event has not come yet.
pub(super) const NOT_READY: u32 = CUresult::CUDA_ERROR_NOT_READY as u32;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_failure_is_told_with_call_name_code_and_remedy() {
        let text = driver_error("cuMemAlloc_v2", 2, None, "4 GiB on device 0").to_string();
        assert!(
            text.starts_with(
                "cuMemAlloc_v2 failed with CUDA_ERROR_OUT_OF_MEMORY, code 2 (4 GiB on device 0); free device"
            ),
            "{text}"
        );
        let text = driver_error("cuInit", 9999, Some("CUDA_ERROR_OF_TOMORROW"), "").to_string();
        assert!(text.starts_with("cuInit failed with CUDA_ERROR_OF_TOMORROW, code 9999; see NVIDIA's list"), "{text}");
        let text = driver_error("cuInit", 9999, None, "").to_string();
        assert!(text.contains("an unknown code, code 9999"), "{text}");
    }

    #[test]
    fn each_code_stands_once_and_has_advice() {
        let codes: BTreeSet<_> = HINTS.iter().map(|(code, _)| *code as u32).collect();
        assert_eq!(codes.len(), HINTS.len());
        assert!(HINTS.iter().all(|(_, hint)| hint.len() > 20));
    }
}
