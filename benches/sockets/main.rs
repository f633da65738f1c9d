//! Ways to get bytes through a TCP socket, beside each other: what the TCP carrier does, and what it might do instead.
//!
//!     cargo bench --bench sockets                 over loopback, and over a veth pair where this may make one
//!     cargo bench --bench sockets -- --loopback   over loopback alone
//!
//! Two threads send one message to and fro. All ways run in turn, round after round; a time is the median over the rounds
//! of half a round trip, and stands beside the ratio to the first way in the same rounds. What the kernel refuses is said,
//! with its reason.

mod ways;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant};

use ways::{WAYS, Way};

/// A short message, one of a few segments, and a long one.
const SIZES: [usize; 3] = [64, 32 << 10, 1 << 20];
const ROUNDS: usize = 11;
/// How long one way runs in a round.
const TURN: Duration = Duration::from_millis(15);

/// The two network namespaces, and the cable between them.
const NAMESPACES: [&str; 2] = ["phxwire1", "phxwire2"];

fn main() -> io::Result<()> {
    // `cargo test --benches` calls this with `--test`: once through everything is enough.
    let is_short = std::env::args().any(|argument| argument == "--test");
    let rounds = if is_short { 1 } else { ROUNDS };
    let processors = processors()?;
    over("loopback", rounds, processors, || pair(Ipv4Addr::LOCALHOST, [None, None]))?;
    if is_short || std::env::args().any(|argument| argument == "--loopback") {
        return Ok(());
    }
    match Cable::new() {
        Ok(_cable) => over("veth", rounds, processors, || pair(Ipv4Addr::new(10, 79, 0, 1), NAMESPACES.map(Some))),
        Err(error) => {
            println!("veth: skipped: {error}");
            Ok(())
        }
    }
}

/// Runs every way over every size on connections of this kind.
fn over(
    name: &str,
    rounds: usize,
    processors: [usize; 2],
    connect: impl Fn() -> io::Result<[TcpStream; 2]>,
) -> io::Result<()> {
    println!("{name}: us one way, and the ratio to the first");
    for bytes in SIZES {
        let mut ends = Vec::new();
        for (name, make) in WAYS {
            let [here, there] = connect()?;
            let made = make(here, bytes).and_then(|here| Ok((here, make(there, bytes)?)));
            match made {
                Ok((here, there)) => ends.push((name, here, there, Vec::new())),
                Err(error) => println!("{bytes:>9} B  {name:<34} cannot be had: {error}"),
            }
        }
        for _ in 0..rounds {
            for (_, here, there, times) in &mut ends {
                times.push(to_and_fro(here.as_mut(), there.as_mut(), bytes, processors)?);
            }
        }
        let first = ends.first().map(|(.., times)| times.clone()).unwrap_or_default();
        for (name, here, _, times) in &ends {
            let ratios = times.iter().zip(&first).map(|(time, first)| time / first).collect();
            let (time, ratio) = (median(times.clone()), median(ratios));
            println!("{bytes:>9} B  {name:<34} {time:>9.2}  {ratio:>5.2}  {}", here.remark());
        }
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Half a round trip in microseconds. Every message is looked at where it arrives.
fn to_and_fro(here: &mut dyn Way, there: &mut dyn Way, bytes: usize, processors: [usize; 2]) -> io::Result<f64> {
    keep_to(processors[0])?;
    let since = Instant::now();
    let count = std::thread::scope(|scope| {
        scope.spawn(move || or_exit(keep_to(processors[1]).and_then(|()| echo(there, bytes))));
        or_exit(ask(here, bytes, since))
    });
    Ok(since.elapsed().as_secs_f64() * 1e6 / f64::from(count) / 2.0)
}

/// Sends messages until the turn is over, each when the one before has come back. Returns how many.
fn ask(way: &mut dyn Way, bytes: usize, since: Instant) -> io::Result<u32> {
    let mut count = 0_u32;
    loop {
        let mark = if since.elapsed() > TURN { LAST } else { (count % 251) as u8 };
        // The last byte is what the echo looks at.
        way.to_send()[bytes - 1] = mark;
        way.send()?;
        way.receive()?;
        assert_eq!(way.received()[0], mark, "what came back is not what was sent");
        count += 1;
        if mark == LAST {
            return Ok(count);
        }
    }
}

/// Answers every message with one whose first byte is its last.
fn echo(way: &mut dyn Way, bytes: usize) -> io::Result<()> {
    loop {
        way.receive()?;
        let mark = way.received()[bytes - 1];
        way.to_send()[0] = mark;
        way.send()?;
        if mark == LAST {
            return Ok(());
        }
    }
}

/// Ends the program when one side fails: the other would wait for it.
fn or_exit<T>(outcome: io::Result<T>) -> T {
    outcome.unwrap_or_else(|error| {
        eprintln!("sockets: {error}");
        std::process::exit(1)
    })
}

/// Two processors that this process may use.
fn processors() -> io::Result<[usize; 2]> {
    let set = rustix::thread::sched_getaffinity(None)?;
    let mut usable = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&processor| set.is_set(processor));
    match (usable.next(), usable.next()) {
        (Some(first), Some(second)) => Ok([first, second]),
        _ => Err(io::Error::other("two threads that poll need two processors")),
    }
}

/// Binds this thread to a processor, so that two that poll never share one.
fn keep_to(processor: usize) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(processor);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Ends a turn.
const LAST: u8 = 255;

/// A connection to an address of the second namespace, from the first; or within this one's.
fn pair(address: Ipv4Addr, namespaces: [Option<&'static str>; 2]) -> io::Result<[TcpStream; 2]> {
    let within = |name: Option<&'static str>| -> io::Result<()> {
        let Some(name) = name else { return Ok(()) };
        let namespace = std::fs::File::open(format!("/run/netns/{name}"))?;
        let kind = Some(rustix::thread::LinkNameSpaceType::Network);
        Ok(rustix::thread::move_into_link_name_space(namespace.as_fd(), kind)?)
    };
    // A thread's namespace is its own, and its sockets stay in it.
    let listener = std::thread::spawn(move || within(namespaces[0]).and_then(|()| TcpListener::bind((address, 0))));
    let listener = listener.join().map_err(|_| io::Error::other("listening panicked"))??;
    let to: SocketAddr = listener.local_addr()?;
    let dials = std::thread::spawn(move || within(namespaces[1]).and_then(|()| TcpStream::connect(to)));
    let dialled = dials.join().map_err(|_| io::Error::other("dialling panicked"))??;
    let (accepted, _) = listener.accept()?;
    for stream in [&dialled, &accepted] {
        stream.set_nodelay(true)?;
        // As the carrier has it, and for its reasons.
        socket2::SockRef::from(stream).set_tcp_congestion(b"reno")?;
    }
    Ok([dialled, accepted])
}

/// A pair of virtual network cards, each in a namespace of its own; taken away in the end.
struct Cable;

impl Cable {
    fn new() -> io::Result<Self> {
        drop(Self);
        let [first, second] = NAMESPACES;
        for line in [
            format!("netns add {first}"),
            format!("netns add {second}"),
            format!("link add eth0 netns {first} type veth peer name eth0 netns {second}"),
            format!("-netns {first} address add 10.79.0.1/24 dev eth0"),
            format!("-netns {second} address add 10.79.0.2/24 dev eth0"),
            format!("-netns {first} link set eth0 up"),
            format!("-netns {second} link set eth0 up"),
        ] {
            let done = Command::new("ip").args(line.split(' ')).output()?;
            if !done.status.success() {
                let why = String::from_utf8_lossy(&done.stderr).trim().to_owned();
                drop(Self);
                return Err(io::Error::other(format!("ip {line}: {why}")));
            }
        }
        Ok(Self)
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        for name in NAMESPACES {
            // None is there before the first time.
            let _ = Command::new("ip").args(["netns", "delete", name]).output();
        }
    }
}
