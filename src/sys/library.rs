//! Libraries that are found when the program runs.

use std::path::{Path, PathBuf};

use libloading::os::unix;

/// A loaded library. It is never unloaded: some do not survive that.
#[derive(Debug)]
pub struct Library {
    /// The name or file that was loaded.
    pub name: String,
    library: std::mem::ManuallyDrop<unix::Library>,
}

/// Why a library could not be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotLoaded {
    /// The names and files that were tried.
    pub tried: Vec<String>,
    /// What was said of one that is there and does not load.
    pub reason: Option<String>,
}

impl Library {
    /// Loads the first of `names` that is found: in `folders`, then where the system looks.
    ///
    /// # Errors
    ///
    /// Tells what was tried, and why a file that is there could not be loaded.
    pub fn open(names: &[&str], folders: &[PathBuf]) -> Result<Self, NotLoaded> {
        let in_folder = |folder: &PathBuf| names.iter().map(|name| folder.join(name)).collect::<Vec<_>>();
        let files = folders.iter().flat_map(in_folder).filter(|file| file.exists());
        let mut tried = Vec::new();
        let mut reason = None;
        for file in files.chain(names.iter().map(PathBuf::from)) {
            match Self::load(&file) {
                Ok(library) => {
                    let name = file.display().to_string();
                    return Ok(Self { name, library: std::mem::ManuallyDrop::new(library) });
                }
                Err(text) => {
                    // Not being there is no reason; being there and not loading is.
                    if file.is_absolute() || !text.contains("No such file") {
                        reason.get_or_insert(text);
                    }
                    tried.push(file.display().to_string());
                }
            }
        }
        Err(NotLoaded { tried, reason })
    }

    fn load(file: &Path) -> Result<unix::Library, String> {
        // SAFETY: loading runs the initialisers of a library that other programs of this machine load in the same way.
        unsafe { unix::Library::open(Some(file), unix::RTLD_LAZY | unix::RTLD_LOCAL) }
            .map_err(|error| std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string))
    }

    /// The function of this name, which ends with a zero byte; none if the library has none.
    ///
    /// # Safety
    ///
    /// `F` must be a function pointer of the type that the library gives the name.
    pub unsafe fn function<F: Copy>(&self, name: &str) -> Option<F> {
        // SAFETY: the caller's promise.
        unsafe { self.library.get::<F>(name.as_bytes()) }.ok().map(|symbol| *symbol)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_is_there_is_loaded_and_its_functions_are_found() {
        let library = Library::open(&["libnone.so.9", "libc.so.6"], &[]).expect("the C library");
        assert_eq!(library.name, "libc.so.6");
        // SAFETY: the C library gives the function this type.
        let length = unsafe { library.function::<unsafe extern "C" fn(*const libc::c_char) -> usize>("strlen\0") };
        // SAFETY: a text that ends with a zero byte.
        assert_eq!(length.map(|length| unsafe { length(c"four".as_ptr()) }), Some(4));
        // SAFETY: there is no such function, whatever its type.
        assert!(unsafe { library.function::<unsafe extern "C" fn()>("phalanx_has_none\0") }.is_none());
    }

    #[test]
    fn what_is_not_there_is_told_from_what_does_not_load() {
        let missing = Library::open(&["libnone.so.9"], &[]).expect_err("no such library");
        assert_eq!(missing, NotLoaded { tried: vec!["libnone.so.9".into()], reason: None });
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("libnone.so.9"), b"not a library").unwrap();
        let broken = Library::open(&["libnone.so.9"], &[folder.path().into()]).expect_err("not a library");
        assert!(broken.reason.is_some() && broken.tried.len() == 2, "{broken:?}");
    }
}
