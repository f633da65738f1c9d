//! The machines of a job and the places on them, as the user names them.

use std::net::IpAddr;
use std::path::Path;

use crate::types::{Error, Result};

/// A machine, and how many workers it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its name or address, without brackets.
    pub name: String,
    /// How many workers may run there.
    pub slots: usize,
    /// The command that runs another command on it, such as `ip netns exec h1`. Empty for this machine.
    pub enter: Vec<String>,
}

impl Host {
    /// A host that needs no command to enter it.
    pub fn new(name: impl Into<String>, slots: usize) -> Self {
        Self { name: name.into(), slots, enter: Vec::new() }
    }
}

/// Reads `host:slots,host,...`. A host without slots has one; a host named twice has both numbers of slots.
pub fn parse_list(text: &str) -> Result<Vec<Host>> {
    let mut hosts = Vec::new();
    for item in text.split(',') {
        let (name, slots) = parse_item(item.trim()).map_err(|what| Error::invalid(format!("-H {text}: {what}")))?;
        add(&mut hosts, name, slots.unwrap_or(1));
    }
    Ok(hosts)
}

/// Reads a host file: a host a line, as `host`, `host:slots` or `host slots=n`; `#` begins a comment. Errors name
/// `path` and the line.
pub fn parse_file(path: &Path, text: &str) -> Result<Vec<Host>> {
    let mut hosts = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let wrong = |what: String| Error::invalid(format!("{}:{}: {what}", path.display(), index + 1));
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        // `slots = 4` is the same as `slots=4`.
        let line = line.replace(" =", "=").replace("= ", "=");
        let mut words = line.split_whitespace();
        let (name, mut slots) = parse_item(words.next().unwrap_or_default()).map_err(wrong)?;
        for word in words {
            let value = word.strip_prefix("slots=").ok_or_else(|| {
                wrong(format!("{word:?} is not understood; a line is `host`, `host:4` or `host slots=4`"))
            })?;
            if slots.is_some() {
                return Err(wrong("the number of slots is given twice".into()));
            }
            slots = Some(parse_slots(value).map_err(wrong)?);
        }
        add(&mut hosts, name, slots.unwrap_or(1));
    }
    if hosts.is_empty() {
        return Err(Error::invalid(format!("{}: no host in this file", path.display())));
    }
    Ok(hosts)
}

/// Reads what a host discovery script prints: a host a line, as `host:slots`, or `host`, which has `slots` slots if a
/// number is given here; `#` begins a comment. A host with 0 slots, and an empty answer, are possible: nothing can be
/// started there. The error says which line is not understood.
pub fn parse_discovered(text: &str, slots: Option<usize>) -> Result<Vec<Host>, String> {
    let mut hosts = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let wrong = |what: String| format!("line {}: {what}", index + 1);
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        if let Some((name, "0")) = line.rsplit_once(':') {
            let (name, _) = parse_item(name).map_err(wrong)?;
            add(&mut hosts, name, 0);
            continue;
        }
        let (name, given) = parse_item(line).map_err(wrong)?;
        let slots = given.or(slots).ok_or_else(|| {
            wrong(format!("{line:?} has no number of slots; write {line}:4, or give --slots-per-host"))
        })?;
        add(&mut hosts, name, slots);
    }
    Ok(hosts)
}

fn add(hosts: &mut Vec<Host>, name: String, slots: usize) {
    match hosts.iter_mut().find(|host| host.name == name) {
        Some(host) => host.slots = host.slots.saturating_add(slots),
        None => hosts.push(Host::new(name, slots)),
    }
}

/// `host`, `host:slots`, `[address]` or `[address]:slots`.
fn parse_item(item: &str) -> Result<(String, Option<usize>), String> {
    if item.is_empty() {
        return Err("a host name is missing".into());
    }
    let (name, slots) = if let Some(rest) = item.strip_prefix('[') {
        let (name, rest) = rest.split_once(']').ok_or_else(|| format!("{item:?} has no closing bracket"))?;
        if !matches!(name.parse(), Ok(IpAddr::V6(_))) {
            return Err(format!("{name:?} is not an IPv6 address; brackets are for those"));
        }
        let slots = match rest.strip_prefix(':') {
            Some(slots) => Some(slots),
            None if rest.is_empty() => None,
            None => return Err(format!("{rest:?} after the bracket is not understood; write [address]:slots")),
        };
        (name, slots)
    } else if item.matches(':').count() > 1 {
        return Err(format!("an IPv6 address stands in brackets: [{item}], or [address]:slots"));
    } else {
        match item.split_once(':') {
            Some((name, slots)) => (name, Some(slots)),
            None => (item, None),
        }
    };
    if name.is_empty() {
        return Err(format!("{item:?} has no host name"));
    }
    // A name that begins with a dash would be taken for an option by whatever enters the host.
    if name.starts_with('-') || !name.chars().all(|c| c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%')) {
        return Err(format!("{name:?} is not a host name"));
    }
    Ok((name.to_owned(), slots.map(parse_slots).transpose()?))
}

fn parse_slots(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(slots) if slots > 0 => Ok(slots),
        _ => Err(format!("{text:?} is not a number of slots (1 or more)")),
    }
}

/// Knows this machine by its names.
#[derive(Clone, Debug, Default)]
pub struct LocalNames {
    /// The names and addresses that mean this machine, besides `localhost` and the loopback addresses.
    pub names: Vec<String>,
    /// The addresses of its network interfaces.
    pub addresses: Vec<IpAddr>,
}

impl LocalNames {
    /// The name the kernel has for this machine, whole and up to its first dot, and the addresses of its interfaces.
    pub fn of_this_machine() -> Self {
        let name = host_name();
        let short = name.split('.').next().unwrap_or_default().to_owned();
        let mut names = vec![name, short];
        names.dedup();
        let interfaces = crate::sys::network::interface_addresses().unwrap_or_default();
        Self { names, addresses: interfaces.into_iter().map(|interface| interface.address).collect() }
    }

    /// Whether `name` is this machine.
    pub fn contain(&self, name: &str) -> bool {
        name.eq_ignore_ascii_case("localhost")
            || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback() || self.addresses.contains(&address))
            || self.names.iter().any(|known| !known.is_empty() && known.eq_ignore_ascii_case(name))
    }
}

/// The name the kernel has for this machine.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Vec<(String, usize)> {
        parse_list(text).unwrap().into_iter().map(|host| (host.name, host.slots)).collect()
    }

    fn list_error(text: &str) -> String {
        parse_list(text).unwrap_err().to_string()
    }

    #[test]
    fn lists_name_hosts_and_slots() {
        assert_eq!(list("a"), [("a".into(), 1)]);
        assert_eq!(list("a:2, b-1.x:3"), [("a".into(), 2), ("b-1.x".into(), 3)]);
        assert_eq!(list("a:2,b,a"), [("a".into(), 3), ("b".into(), 1)]);
        assert_eq!(list("[::1]:4,[fe80::2]"), [("::1".into(), 4), ("fe80::2".into(), 1)]);
    }

    #[test]
    fn mistakes_in_lists_are_named() {
        assert!(list_error("a:0").contains("\"0\" is not a number of slots"));
        assert!(list_error("a:x").contains("\"x\""));
        assert!(list_error("a,,b").contains("missing"));
        assert!(list_error(":3").contains("no host name"));
        assert!(list_error("::1").contains("[::1]"));
        assert!(list_error("[::1:3").contains("closing bracket"));
        assert!(list_error("[a]:3").contains("not an IPv6 address"));
        assert!(list_error("[::1]3").contains("[address]:slots"));
        assert!(list_error("-oProxyCommand=x").contains("not a host name"));
    }

    #[test]
    fn files_take_both_conventions_and_comments() {
        let text = "# the rack\nnode1 slots=4  # four\n\nnode2:2\nnode3 slots = 1\r\n[::1]:2\nnode4\n";
        let hosts = parse_file(Path::new("hosts"), text).unwrap();
        let hosts: Vec<_> = hosts.iter().map(|host| (host.name.as_str(), host.slots)).collect();
        assert_eq!(hosts, [("node1", 4), ("node2", 2), ("node3", 1), ("::1", 2), ("node4", 1)]);
    }

    #[test]
    fn mistakes_in_files_are_named_with_their_line() {
        let error = |text: &str| parse_file(Path::new("f"), text).unwrap_err().to_string();
        assert!(error("a\nb slots=x\n").starts_with("f:2: \"x\" is not a number"));
        assert!(error("a slot=2").starts_with("f:1: \"slot=2\" is not understood"));
        assert!(error("a:2 slots=2").starts_with("f:1: the number of slots is given twice"));
        assert!(error("# nothing\n").starts_with("f: no host"));
    }

    #[test]
    fn what_a_script_prints_is_read() {
        let read = |text: &str, slots| {
            parse_discovered(text, slots).map(|hosts| hosts.into_iter().map(|host| (host.name, host.slots)).collect())
        };
        let hosts = |list: &[(&str, usize)]| Ok(list.iter().map(|(name, slots)| ((*name).into(), *slots)).collect());
        assert_eq!(read("a:2\n\n# b:3\nc:1 # now\na:1\r\n[::1]:4\n", None), hosts(&[("a", 3), ("c", 1), ("::1", 4)]));
        assert_eq!(read("a\nb:1\nc:0\n[::1]", Some(4)), hosts(&[("a", 4), ("b", 1), ("c", 0), ("::1", 4)]));
        assert_eq!(read("", None), hosts(&[]));
        let wrong = |text: &str| read(text, None).map(|_: Vec<(String, usize)>| ()).expect_err("a mistake");
        assert!(wrong("a:1\nb").starts_with("line 2: \"b\" has no number of slots"));
        assert!(wrong("a:-1").starts_with("line 1: \"-1\" is not a number of slots"));
        assert!(wrong("Traceback (most recent call last):").starts_with("line 1: "));
    }

    #[test]
    fn this_machine_is_known_by_its_names() {
        let local = LocalNames {
            names: vec!["box.example".into(), "box".into()],
            addresses: vec!["10.0.0.7".parse().expect("an address")],
        };
        for name in ["localhost", "127.0.0.1", "127.1.2.3", "::1", "BOX", "box.example", "10.0.0.7"] {
            assert!(local.contain(name), "{name}");
        }
        for name in ["other", "10.0.0.1", ""] {
            assert!(!local.contain(name), "{name}");
        }
    }
}
