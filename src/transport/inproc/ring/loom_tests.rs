//! Every interleaving of the two ends, in the small.

use super::*;

fn read_all(consumer: &mut Consumer, seen: &mut Vec<u8>) {
    let mut bytes = [0; 4];
    // SAFETY: the buffer has that many bytes.
    let count = unsafe { consumer.read(bytes.as_mut_ptr(), bytes.len()) };
    seen.extend_from_slice(&bytes[..count]);
}

#[test]
fn bytes_are_handed_over_in_order() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(2);
        let writer = loom::thread::spawn(move || {
            let mut left: &[u8] = &[1, 2, 3];
            for _ in 0..2 {
                let count = producer.write(left);
                producer.publish();
                left = &left[count..];
            }
            producer.close();
            3 - left.len()
        });
        let mut seen = Vec::new();
        for _ in 0..2 {
            read_all(&mut consumer, &mut seen);
            consumer.publish();
        }
        let written = writer.join().unwrap();
        while !consumer.is_closed() {
            read_all(&mut consumer, &mut seen);
        }
        assert_eq!(seen, &[1, 2, 3][..written]);
    });
}

/// The reader goes to sleep only if its wake-up is certain.
#[test]
fn a_sleeping_reader_is_woken() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(2);
        let woken = loom::sync::Arc::new(AtomicBool::new(false));
        let flag = woken.clone();
        let writer = loom::thread::spawn(move || {
            producer.write(&[1]);
            if producer.publish() {
                flag.store(true, Ordering::Release);
            }
            producer
        });
        let sleeps = consumer.prepare_sleep();
        let producer = writer.join().unwrap();
        // A wake-up too many does no harm; one too few is for ever.
        assert!(!sleeps || woken.load(Ordering::Acquire));
        drop(producer);
    });
}

/// The writer goes to sleep only if its wake-up is certain.
#[test]
fn a_sleeping_writer_is_woken() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(2);
        producer.write(&[1, 2]);
        producer.publish();
        let woken = loom::sync::Arc::new(AtomicBool::new(false));
        let flag = woken.clone();
        let reader = loom::thread::spawn(move || {
            let mut seen = Vec::new();
            read_all(&mut consumer, &mut seen);
            if consumer.publish() {
                flag.store(true, Ordering::Release);
            }
        });
        let sleeps = producer.prepare_sleep();
        reader.join().unwrap();
        // A wake-up too many does no harm; one too few is for ever.
        assert!(!sleeps || woken.load(Ordering::Acquire));
    });
}

/// Closing wakes like writing does.
#[test]
fn a_reader_does_not_sleep_through_the_end() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(2);
        let woken = loom::sync::Arc::new(AtomicBool::new(false));
        let flag = woken.clone();
        let writer = loom::thread::spawn(move || {
            if producer.close() {
                flag.store(true, Ordering::Release);
            }
        });
        let sleeps = consumer.prepare_sleep();
        writer.join().unwrap();
        // A wake-up too many does no harm; one too few is for ever.
        assert!(!sleeps || woken.load(Ordering::Acquire));
        assert!(consumer.is_closed());
    });
}
