//! Numbered places for requests, and queues through them, so that a message costs no allocation once there have been
//! as many at a time.

/// No place.
pub(super) const NONE: u32 = u32::MAX;

struct Place<T> {
    /// Grows by one whenever the place is given to a new value, so that an old key is known to be old.
    issue: u32,
    /// The next place in whatever queue this one is in.
    next: u32,
    value: Option<T>,
}

/// Values in numbered places.
pub(super) struct Slab<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

/// What a key from the peer refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    /// The value in this place.
    Live(u32),
    /// A value that is gone.
    Old,
    /// Nothing: no such key was ever given out.
    Unknown,
}

impl<T> Slab<T> {
    pub fn new() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }

    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn insert(&mut self, value: T) -> u32 {
        if let Some(at) = self.free.pop() {
            let place = &mut self.places[at as usize];
            place.issue = place.issue.wrapping_add(1);
            place.next = NONE;
            place.value = Some(value);
            return at;
        }
        let at = self.places.len() as u32;
        self.places.push(Place { issue: 0, next: NONE, value: Some(value) });
        at
    }

    pub fn remove(&mut self, at: u32) -> Option<T> {
        let value = self.places.get_mut(at as usize)?.value.take()?;
        self.free.push(at);
        Some(value)
    }

    pub fn get(&self, at: u32) -> Option<&T> {
        self.places.get(at as usize)?.value.as_ref()
    }

    pub fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.places.get_mut(at as usize)?.value.as_mut()
    }

    /// The name of the value in a place, different from those of all values that were there before.
    pub fn key(&self, at: u32) -> u64 {
        let issue = self.places.get(at as usize).map_or(0, |place| place.issue);
        u64::from(issue) << 32 | u64::from(at)
    }

    pub fn look_up(&self, key: u64) -> Lookup {
        let at = key as u32;
        let issue = (key >> 32) as u32;
        match self.places.get(at as usize) {
            None => Lookup::Unknown,
            // Half of all numbers are the future, so that the count may run over.
            Some(place) => match place.issue.wrapping_sub(issue) {
                0 if place.value.is_some() => Lookup::Live(at),
                0..=0x7fff_ffff => Lookup::Old,
                _ => Lookup::Unknown,
            },
        }
    }

    /// The places in use.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.places).filter_map(|(at, place)| Some((at, place.value.as_ref()?)))
    }
}

/// A queue of places of one slab. A place is in at most one queue at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queue {
    head: u32,
    tail: u32,
}

impl Queue {
    pub const EMPTY: Queue = Queue { head: NONE, tail: NONE };

    pub fn is_empty(&self) -> bool {
        self.head == NONE
    }

    pub fn front(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    pub fn push<T>(&mut self, slab: &mut Slab<T>, at: u32) {
        if self.tail == NONE {
            self.head = at;
        } else if let Some(last) = slab.places.get_mut(self.tail as usize) {
            last.next = at;
        }
        self.tail = at;
    }

    pub fn pop<T>(&mut self, slab: &mut Slab<T>) -> Option<u32> {
        let at = self.front()?;
        let next = slab.places.get_mut(at as usize).map_or(NONE, |place| std::mem::replace(&mut place.next, NONE));
        self.head = next;
        if next == NONE {
            self.tail = NONE;
        }
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_key_finds_nothing_and_a_future_one_is_unknown() {
        let mut slab = Slab::new();
        let first = slab.insert("first");
        let key = slab.key(first);
        assert_eq!(slab.look_up(key), Lookup::Live(first));
        assert_eq!(slab.look_up(key + (1 << 32)), Lookup::Unknown);
        assert_eq!(slab.look_up(key + 1), Lookup::Unknown);
        assert_eq!(slab.remove(first), Some("first"));
        assert_eq!(slab.look_up(key), Lookup::Old);
        let second = slab.insert("second");
        assert_eq!(second, first);
        assert_eq!(slab.look_up(key), Lookup::Old);
        assert_eq!(slab.look_up(slab.key(second)), Lookup::Live(second));
        assert_eq!(slab.remove(second), Some("second"));
        assert_eq!(slab.remove(second), None);
        assert!(slab.is_empty());
    }

    #[test]
    fn queues_keep_order_and_share_a_slab() {
        let mut slab = Slab::new();
        let (mut even, mut odd) = (Queue::EMPTY, Queue::EMPTY);
        for number in 0..10 {
            let at = slab.insert(number);
            if number % 2 == 0 { even.push(&mut slab, at) } else { odd.push(&mut slab, at) }
        }
        for expected in [0, 2, 4, 6, 8] {
            let at = even.pop(&mut slab).unwrap();
            assert_eq!(slab.remove(at), Some(expected));
        }
        assert!(even.is_empty() && even.pop(&mut slab).is_none());
        let at = slab.insert(11);
        odd.push(&mut slab, at);
        let places: Vec<_> = std::iter::from_fn(|| odd.pop(&mut slab)).collect();
        let rest: Vec<_> = places.into_iter().map(|at| *slab.get(at).unwrap()).collect();
        assert_eq!(rest, [1, 3, 5, 7, 9, 11]);
    }
}
