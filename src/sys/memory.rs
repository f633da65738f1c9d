//! Shared memory without names: memfd segments and their mappings.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// The size of a page in bytes.
pub fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// How much memory the machine has.
pub fn memory_bytes() -> usize {
    let info = rustix::system::sysinfo();
    let bytes =
        (info.totalram as u64).saturating_mul(u64::from(info.mem_unit)) / page_bytes() as u64 * page_bytes() as u64;
    usize::try_from(bytes).unwrap_or(usize::MAX / 4)
}

/// The seals that make a segment's size a fact: with them on, no peer can shrink the file under a mapping, which
/// would turn an access into a fatal signal.
fn size_seals() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL
}

/// An anonymous piece of memory that can be passed to another process as a descriptor. Its size never changes.
#[derive(Debug)]
pub struct Segment {
    fd: OwnedFd,
    bytes: usize,
}

impl Segment {
    /// A new segment of `bytes`, zeroed, a whole number of pages. The memory is reserved here, so that its lack is an
    /// error now and not a fatal signal at the first touch.
    pub fn create(name: &str, bytes: usize) -> io::Result<Self> {
        let segment = Self::unsealed(name, bytes)?;
        segment.seal(size_seals())?;
        Ok(segment)
    }

    /// As [`create`](Self::create), and mapped whole: the only mapping of it that can ever be written. On a kernel before
    /// 5.1, which cannot forbid others, it is theirs to keep to.
    ///
    /// `spare` bytes more follow from `spare_from` on, if the limits allow that many addresses. They have no memory before
    /// they are [reserved](Self::reserve).
    pub fn create_for_one_writer(
        name: &str,
        bytes: usize,
        spare_from: usize,
        spare: usize,
    ) -> io::Result<(Self, Mapping, Option<Mapping>)> {
        let mut segment = Self::unsealed(name, bytes)?;
        let mapping = Mapping::new(&segment, 0, bytes)?;
        let spare = segment.extend(spare_from, spare);
        if segment.seal(size_seals() | SealFlags::FUTURE_WRITE).is_err() {
            segment.seal(size_seals())?;
        }
        Ok((segment, mapping, spare))
    }

    /// Makes the segment longer, without memory for what is new, and maps that. Leaves it as it is where it cannot.
    fn extend(&mut self, from: usize, bytes: usize) -> Option<Mapping> {
        let whole = from.checked_add(bytes)?;
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current.unwrap_or(u64::MAX);
        let before = std::mem::replace(&mut self.bytes, whole);
        let fits = bytes > 0 && whole as u64 <= limit && rustix::fs::ftruncate(&self.fd, whole as u64).is_ok();
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let mapping = fits.then(|| Mapping::with(self, from, bytes, access, flags).ok()).flatten();
        if mapping.is_none() {
            self.bytes = before;
            // Nobody knows the segment yet. Should this fail, the peers find it longer than they need.
            let _ = rustix::fs::ftruncate(&self.fd, before as u64);
        }
        mapping
    }

    /// Sees to it that a range has memory, so that its lack is an error now and not a fatal signal at the first touch.
    /// `mapping` is of the segment from `start` on; the range lies `offset` beyond that.
    pub fn reserve(&self, mapping: &Mapping, start: usize, offset: usize, bytes: usize) -> io::Result<()> {
        let end = offset.checked_add(bytes).filter(|end| *end <= mapping.bytes);
        if end.is_none() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let address = mapping.start.as_ptr().wrapping_add(offset).cast();
        // SAFETY: the range is inside the mapping. Populating changes no byte.
        let populated = unsafe { rustix::mm::madvise(address, bytes, rustix::mm::Advice::LinuxPopulateWrite) };
        match populated {
            // Kernels before 5.14 cannot; there the file is told, which takes no advice on huge pages.
            Err(rustix::io::Errno::INVAL) => {
                Ok(rustix::fs::fallocate(&self.fd, FallocateFlags::empty(), (start + offset) as u64, bytes as u64)?)
            }
            Err(rustix::io::Errno::FAULT) => Err(io::ErrorKind::OutOfMemory.into()),
            other => Ok(other?),
        }
    }

    fn unsealed(name: &str, bytes: usize) -> io::Result<Self> {
        if bytes == 0 || !bytes.is_multiple_of(page_bytes()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a segment is a whole number of pages"));
        }
        // Reserving more than the machine has would not fail: it would wake the kernel's out-of-memory killer. And
        // beyond the file size limit (`ulimit -f`, which holds for nameless files too) it would raise a signal.
        let memory = memory_bytes() as u64;
        let file_limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current.unwrap_or(u64::MAX);
        if bytes as u64 > memory.min(file_limit) {
            let what = format!(
                "{bytes} bytes of shared memory; the machine has {memory}, the file size limit (ulimit -f) is {file_limit}"
            );
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, what));
        }
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, bytes as u64)?;
        Ok(Self { fd, bytes })
    }

    fn seal(&self, seals: SealFlags) -> io::Result<()> {
        Ok(rustix::fs::fcntl_add_seals(&self.fd, seals)?)
    }

    /// A segment that a peer sent. It is refused unless its size is exactly `bytes` and sealed.
    pub fn from_peer(fd: OwnedFd, bytes: usize) -> io::Result<Self> {
        Self::checked(fd, bytes, bytes)
    }

    /// As [`from_peer`](Self::from_peer), where the segment may also be longer.
    pub fn from_peer_at_least(fd: OwnedFd, bytes: usize) -> io::Result<Self> {
        Self::checked(fd, bytes, isize::MAX as usize)
    }

    fn checked(fd: OwnedFd, least: usize, most: usize) -> io::Result<Self> {
        let refuse = |what: String| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        // Seals first: a size that is not sealed may change between two looks.
        match rustix::fs::fcntl_get_seals(&fd) {
            Ok(seals) if seals.contains(size_seals()) => {}
            Ok(_) => return refuse("the peer's memory segment is not sealed".into()),
            Err(error) => {
                return refuse(format!("the peer's descriptor is not a memory segment: {error}"));
            }
        }
        let found = rustix::fs::fstat(&fd)?.st_size;
        match usize::try_from(found) {
            Ok(bytes) if (least..=most).contains(&bytes) => Ok(Self { fd, bytes }),
            _ => refuse(format!("the peer's memory segment has {found} bytes; expected {least}")),
        }
    }

    /// The size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn check_range(&self, offset: usize, bytes: usize) -> io::Result<()> {
        let page = page_bytes();
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        if bytes == 0 || !inside || !offset.is_multiple_of(page) || !bytes.is_multiple_of(page) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a mapping is a range of whole pages inside its segment",
            ));
        }
        Ok(())
    }
}

impl AsFd for Segment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A range of a segment, mapped for reading and writing. Other processes may change it at any time, so it is only
/// used through atomics and raw pointers.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is plain memory that belongs to no thread; access to it is through atomics and raw pointers,
// whose users state their own rules.
unsafe impl Send for Mapping {}
// SAFETY: as above; a shared reference gives out nothing but a raw pointer and sizes.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` of `segment` from `offset`, both multiples of the page size. The pages are touched here, so that
    /// later accesses take no faults.
    pub fn new(segment: &Segment, offset: usize, bytes: usize) -> io::Result<Self> {
        Self::with(segment, offset, bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE)
    }

    /// As [`new`](Self::new), for reading only: a write to it is a fatal signal.
    pub fn read_only(segment: &Segment, offset: usize, bytes: usize) -> io::Result<Self> {
        Self::with(segment, offset, bytes, ProtFlags::READ, MapFlags::SHARED | MapFlags::POPULATE)
    }

    /// As [`read_only`](Self::read_only), without touching a page.
    pub fn read_only_lazily(segment: &Segment, offset: usize, bytes: usize) -> io::Result<Self> {
        Self::with(segment, offset, bytes, ProtFlags::READ, MapFlags::SHARED | MapFlags::NORESERVE)
    }

    fn with(segment: &Segment, offset: usize, bytes: usize, access: ProtFlags, flags: MapFlags) -> io::Result<Self> {
        segment.check_range(offset, bytes)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory; the range is inside
        // the segment, whose size is sealed.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, access, flags, segment, offset as u64) }?;
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address zero"))?;
        Ok(Self { start, bytes })
    }

    /// The first byte. Valid as long as `self`.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Asks for huge pages, where the machine has them for shared memory: fewer entries of the page table to miss.
    pub fn prefer_huge_pages(&self) {
        // SAFETY: the range is mapped. The advice changes no byte.
        let _ =
            unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.bytes, rustix::mm::Advice::LinuxHugepage) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `self` and nothing outlives it. Failure would mean that it was not mapped.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// A range of a segment mapped twice, back to back: byte `i` and byte `i + bytes` are the same memory. Any window of
/// up to `bytes` of a ring is therefore one piece, wherever it starts.
#[derive(Debug)]
pub struct RingMapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: as for `Mapping`.
unsafe impl Send for RingMapping {}
// SAFETY: as for `Mapping`.
unsafe impl Sync for RingMapping {}

impl RingMapping {
    /// Maps `bytes` of `segment` from `offset` twice, both multiples of the page size.
    pub fn new(segment: &Segment, offset: usize, bytes: usize) -> io::Result<Self> {
        segment.check_range(offset, bytes)?;
        let twice = bytes.checked_mul(2).ok_or(io::ErrorKind::InvalidInput)?;
        // Reserves the addresses first, so that the two halves can be put into a place that is surely free.
        // SAFETY: a new private mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                twice,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(|| io::Error::other("mapped at address zero"))?;
        // From here on dropping `ring` unmaps the whole reservation, whatever has been put into it.
        let ring = Self { start, bytes };
        for half in 0..2 {
            // SAFETY: the target range lies inside the reservation made above, which nothing else uses; the source
            // range lies inside the segment, whose size is sealed.
            unsafe {
                rustix::mm::mmap(
                    start.as_ptr().add(half * bytes).cast(),
                    bytes,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE,
                    segment,
                    offset as u64,
                )
            }?;
        }
        Ok(ring)
    }

    /// The first byte; `2 * bytes` bytes follow it. Valid as long as `self`.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The size of the ring in bytes (half of what is mapped).
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for RingMapping {
    fn drop(&mut self) {
        // SAFETY: the range of two halves was mapped by `self` and nothing outlives it.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), 2 * self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_across_the_end_is_one_piece() {
        let page = page_bytes();
        let segment = Segment::create("phalanx-test", 3 * page).unwrap();
        let ring = RingMapping::new(&segment, page, 2 * page).unwrap();
        let plain = Mapping::new(&segment, page, 2 * page).unwrap();
        // SAFETY: both mappings are live, and this thread alone uses them.
        unsafe {
            ring.start().as_ptr().add(2 * page - 1).write(7);
            ring.start().as_ptr().add(2 * page).write(8);
            assert_eq!(plain.start().as_ptr().add(2 * page - 1).read(), 7);
            assert_eq!(plain.start().as_ptr().read(), 8);
        }
    }

    #[test]
    fn sizes_cannot_change() {
        let segment = Segment::create("phalanx-test", page_bytes()).unwrap();
        assert!(rustix::fs::ftruncate(&segment, 0).is_err());
        assert!(rustix::fs::ftruncate(&segment, 1 << 20).is_err());
    }

    #[test]
    fn spare_memory_is_there_when_it_is_reserved() {
        let page = page_bytes();
        let spare = 1 << 40;
        let (segment, _, mapping) = Segment::create_for_one_writer("phalanx-test", page, 4 * page, spare).unwrap();
        let Some(mapping) = mapping else {
            return eprintln!("not tested: this process may not have so many addresses (ulimit -v, -f)");
        };
        assert_eq!((segment.bytes(), mapping.bytes()), (4 * page + spare, spare));
        segment.reserve(&mapping, 4 * page, spare - page, page).unwrap();
        assert!(segment.reserve(&mapping, 4 * page, spare, page).is_err());
        let seen = Segment::from_peer_at_least(segment.as_fd().try_clone_to_owned().unwrap(), page).unwrap();
        let theirs = Mapping::read_only_lazily(&seen, 4 * page, spare).unwrap();
        // SAFETY: both mappings are live, the byte is reserved, and this thread alone uses it.
        unsafe {
            mapping.start().as_ptr().add(spare - 1).write(7);
            assert_eq!(theirs.start().as_ptr().add(spare - 1).read(), 7);
        }
        assert!(Mapping::new(&seen, 0, page).is_err(), "nobody else writes it");
    }

    #[test]
    fn foreign_descriptors_are_refused() {
        let page = page_bytes();
        let unsealed =
            rustix::fs::memfd_create("phalanx-test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&unsealed, page as u64).unwrap();
        assert!(Segment::from_peer(unsealed, page).unwrap_err().to_string().contains("not sealed"));

        let (reader, _writer) = io::pipe().unwrap();
        assert!(Segment::from_peer(reader.into(), page).is_err());

        let good = Segment::create("phalanx-test", page).unwrap();
        let again = good.as_fd().try_clone_to_owned().unwrap();
        assert!(Segment::from_peer(again, 2 * page).unwrap_err().to_string().contains("expected"));
    }

    #[test]
    fn impossible_ranges_are_errors() {
        let page = page_bytes();
        let segment = Segment::create("phalanx-test", 2 * page).unwrap();
        assert!(Mapping::new(&segment, page, 2 * page).is_err());
        assert!(Mapping::new(&segment, 1, page).is_err());
        assert!(RingMapping::new(&segment, usize::MAX - page + 1, page).is_err());
        assert!(Segment::create("phalanx-test", page + 1).is_err());
        // More than any machine has.
        assert!(Segment::create("phalanx-test", 1 << 50).is_err());
    }
}
