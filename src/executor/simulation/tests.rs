//! What becomes of operations: they end alike, and whoever is at fault is named.

use super::*;

#[test]
fn operations_in_flight_together_all_end_with_the_right_result() {
    for seed in 0..300 {
        let size = 2 + seed as usize % 5;
        let mut cluster = Cluster::new(seed, size);
        let calls: Vec<_> = (0..6).map(|_| random_call(&cluster)).collect();
        let mut flights = Vec::new();
        for &call in &calls {
            let mut op = Vec::new();
            for rank in 0..size {
                op.push(Some(cluster.submit(rank, call, FAR)));
                (0..cluster.below(20)).for_each(|_| cluster.turn());
            }
            flights.push(op);
        }
        assert!(cluster.settle(&flights), "seed {seed}: does not end");
        for (call, op) in calls.iter().zip(&flights) {
            for (rank, flight) in op.iter().flatten().enumerate() {
                assert_eq!(flight.completion.outcome(), Some(Ok(())), "seed {seed}, rank {rank}: {call:?}");
                check_result(*call, rank, size, flight);
            }
        }
    }
}

#[test]
fn a_mismatch_reaches_every_rank() {
    for seed in 0..300 {
        let size = 2 + seed as usize % 5;
        let mut cluster = Cluster::new(seed, size);
        let (usual, odd_one) = (random_call(&cluster), cluster.below(size));
        let odd = loop {
            let odd = random_call(&cluster);
            if odd != usual {
                break odd;
            }
        };
        let after = SimCall { collective: Collective::Allreduce, algorithm: Algorithm::TwoShot, count: 3, root: 0 };
        let mut flights = Vec::new();
        for number in 0..6 {
            let call = |rank: usize| match number {
                0 if rank == odd_one => odd,
                0 => usual,
                _ => after,
            };
            flights.push((0..size).map(|rank| Some(cluster.submit(rank, call(rank), FAR))).collect());
            assert!(cluster.settle(&flights), "seed {seed}: {usual:?} and {odd:?} do not end");
        }
        for rank in 0..size {
            let outcomes: Vec<_> =
                flights.iter().map(|op| op[rank].as_ref().unwrap().completion.outcome().unwrap()).collect();
            let told = outcomes.iter().any(|outcome| matches!(outcome, Err(Error::Mismatch { .. })));
            assert!(told, "seed {seed}, rank {rank}: {usual:?} and {odd:?} went unseen: {outcomes:?}");
            assert_eq!(outcomes[5], Ok(()), "seed {seed}, rank {rank}: does not go on");
        }
    }
}

#[test]
fn a_death_reaches_every_rank_and_is_named() {
    for seed in 0..300 {
        let size = 3 + seed as usize % 4;
        let mut cluster = Cluster::new(seed, size);
        let victim = cluster.below(size);
        let count = 1 + cluster.below(12);
        let call = SimCall { collective: Collective::Allreduce, count, ..random_call(&cluster) };
        let algorithms = schedule::algorithms_for(Collective::Allreduce);
        let call = SimCall { algorithm: algorithms[cluster.below(algorithms.len())], ..call };
        let when = cluster.below(200);
        let mut flights: Vec<Vec<Option<Flight>>> = Vec::new();
        let mut first = Vec::new();
        for rank in 0..size {
            first.push(Some(cluster.submit(rank, call, FAR)));
        }
        flights.push(first);
        (0..when).for_each(|_| cluster.turn());
        cluster.kill(victim);
        flights.push((0..size).map(|rank| (rank != victim).then(|| cluster.submit(rank, call, FAR))).collect());
        assert!(cluster.settle(&flights), "seed {seed}: the survivors do not end");
        for rank in (0..size).filter(|&rank| rank != victim) {
            let outcome = flights[1][rank].as_ref().unwrap().completion.outcome().unwrap();
            let named = matches!(outcome, Err(Error::PeerFailed { rank: named, .. }) if named == victim);
            assert!(named, "seed {seed}, rank {rank}: {outcome:?}");
            let first = flights[0][rank].as_ref().unwrap();
            if first.completion.outcome() == Some(Ok(())) {
                check_result(call, rank, size, first);
            }
        }
    }
}

#[test]
fn a_timeout_on_one_rank_ends_the_operation_on_all() {
    for seed in 0..100 {
        let size = 3 + seed as usize % 4;
        let mut cluster = Cluster::new(seed, size);
        let silent = cluster.below(size);
        let count = 1 + cluster.below(12);
        let call = SimCall { collective: Collective::Allreduce, count, ..random_call(&cluster) };
        let algorithms = schedule::algorithms_for(Collective::Allreduce);
        let call = SimCall { algorithm: algorithms[cluster.below(algorithms.len())], ..call };
        let first: Vec<_> = (0..size)
            .map(|rank| (rank != silent).then(|| cluster.submit(rank, call, Duration::from_secs(10))))
            .collect();
        let mut flights = vec![first];
        (0..500).for_each(|_| cluster.turn());
        let noticing = (silent + 1) % size;
        let later = cluster.start + Duration::from_secs(11);
        cluster.cores[noticing].as_mut().unwrap().check(later);
        flights[0][silent] = Some(cluster.submit(silent, call, FAR));
        assert!(cluster.settle(&flights), "seed {seed}: does not end");
        // A rank that had everything before it heard may have ended well, and reports the timeout at its next call.
        let next = SimCall { collective: Collective::Allgather, algorithm: Algorithm::Ring, count: 1, root: 0 };
        flights.push((0..size).map(|rank| Some(cluster.submit(rank, next, FAR))).collect());
        assert!(cluster.settle(&flights), "seed {seed}: does not end");
        for rank in 0..size {
            let outcomes: Vec<_> =
                flights.iter().map(|op| op[rank].as_ref().unwrap().completion.outcome().unwrap()).collect();
            let told = |outcome: &Result<()>| matches!(outcome, Err(Error::Timeout { waited, .. }) if *waited == Duration::from_secs(11));
            assert!(outcomes.iter().any(told), "seed {seed}, rank {rank}: {call:?} {outcomes:?}");
        }
    }
}

/// Also by those whose own links to it are well, and that have nothing in flight with the one that noticed.
#[test]
fn a_rank_that_one_gives_up_is_given_up_by_all() {
    for seed in 0..50 {
        let size = 3 + seed as usize % 4;
        let mut cluster = Cluster::new(seed, size);
        let call = SimCall { collective: Collective::Allreduce, algorithm: Algorithm::OneShot, count: 5, root: 0 };
        let first: Vec<_> = (0..size).map(|rank| Some(cluster.submit(rank, call, FAR))).collect();
        let mut flights = vec![first];
        assert!(cluster.settle(&flights), "seed {seed}: does not end");
        let victim = cluster.below(size);
        let witness = (victim + 1 + cluster.below(size - 1)) % size;
        cluster.net.lock().unwrap().queues[victim][witness].push_back(Parcel::Broken);
        cluster.quieten();
        let others = |rank: usize| rank != victim && rank != witness;
        flights.push((0..size).map(|rank| others(rank).then(|| cluster.submit(rank, call, FAR))).collect());
        for rank in (0..size).filter(|&rank| others(rank)) {
            let outcome = flights[1][rank].as_ref().unwrap().completion.outcome();
            let named = matches!(outcome, Some(Err(Error::PeerFailed { rank: named, .. })) if named == victim);
            assert!(named, "seed {seed}, rank {rank}, {victim} lost by {witness}: {outcome:?}");
        }
    }
}

/// A rank that had an operation's result before another gave it up is in its next call when it hears. The others made
/// another call meanwhile: what they see is the cause, and no mismatch.
#[test]
fn ranks_that_went_on_hear_the_cause_and_nothing_else() {
    let mut went_on = 0;
    for seed in 0..300 {
        let size = 3 + seed as usize % 4;
        let mut cluster = Cluster::new(seed, size);
        let call = SimCall { count: 1 + cluster.below(12), ..random_call(&cluster) };
        let recovery = SimCall { collective: Collective::Allreduce, algorithm: Algorithm::TwoShot, count: 2, root: 0 };
        let first: Vec<_> = (0..size).map(|rank| Some(cluster.submit(rank, call, Duration::from_secs(10)))).collect();
        let done = |flight: &Option<Flight>| flight.as_ref().unwrap().completion.is_done();
        while !first.iter().any(done) {
            cluster.turn();
        }
        let Some(noticing) = (0..size).find(|&rank| !done(&first[rank])) else { continue };
        let second: Vec<_> =
            (0..size).map(|rank| done(&first[rank]).then(|| cluster.submit(rank, call, FAR))).collect();
        went_on += second.iter().flatten().count();
        cluster.cores[noticing].as_mut().unwrap().check(cluster.start + Duration::from_secs(11));
        let mut flights = vec![first, second];
        assert!(cluster.settle(&flights[..1]), "seed {seed}: does not end");
        let failed: Vec<_> =
            flights[0].iter().map(|one| one.as_ref().unwrap().completion.outcome().unwrap().is_err()).collect();
        for ((rank, flight), failed) in flights[1].iter_mut().enumerate().zip(failed) {
            flight.get_or_insert_with(|| cluster.submit(rank, if failed { recovery } else { call }, FAR));
        }
        assert!(cluster.settle(&flights), "seed {seed}: does not end");
        // Who had even that before it heard reports the cause at its next call. Then all go on.
        for _ in 0..2 {
            flights.push((0..size).map(|rank| Some(cluster.submit(rank, recovery, FAR))).collect());
            assert!(cluster.settle(&flights), "seed {seed}: does not end");
        }
        for rank in 0..size {
            let outcomes: Vec<_> =
                flights.iter().map(|op| op[rank].as_ref().unwrap().completion.outcome().unwrap()).collect();
            assert!(outcomes.iter().any(Result::is_err), "seed {seed}, rank {rank}: not told: {call:?}");
            assert_eq!(outcomes[3], Ok(()), "seed {seed}, rank {rank}: does not go on: {call:?}");
            for outcome in outcomes {
                assert!(
                    matches!(outcome, Ok(()) | Err(Error::Timeout { .. })),
                    "seed {seed}, rank {rank}: {call:?} {outcome:?}"
                );
            }
        }
    }
    assert!(went_on > 20, "{went_on} ranks went on: too few to show anything");
}

/// Whoever's deadline passes first names the silent rank, however many others wait between the two.
#[test]
fn the_silent_rank_is_named_and_no_other() {
    let mut indirect = 0;
    for seed in 0..120 {
        let size = 3 + seed as usize % 6;
        let mut cluster = Cluster::new(seed, size);
        let silent = cluster.below(size);
        let noticing = (silent + 1 + cluster.below(size - 1)) % size;
        let algorithms = schedule::algorithms_for(Collective::Allreduce);
        let algorithm = algorithms[cluster.below(algorithms.len())];
        let call = SimCall { collective: Collective::Allreduce, count: 1 + cluster.below(12), algorithm, root: 0 };
        let flights: Vec<_> = (0..size)
            .map(|rank| (rank != silent).then(|| cluster.submit(rank, call, Duration::from_secs(10))))
            .collect();
        cluster.asleep = Some(silent);
        let turns = |cluster: &mut Cluster| (0..2000).for_each(|_| cluster.turn());
        turns(&mut cluster);
        for milliseconds in [100, 300, 9200, 10_000] {
            // One is first. Some are not connected to it, and have their own deadlines.
            for (later, first) in [(milliseconds, true), (milliseconds + 50, false)] {
                let later = cluster.start + Duration::from_millis(later);
                for rank in (0..size).filter(|&rank| rank != silent && (rank == noticing) == first) {
                    cluster.cores[rank].as_mut().unwrap().check(later);
                }
                turns(&mut cluster);
            }
        }
        for (rank, flight) in flights.iter().enumerate() {
            let Some(flight) = flight else { continue };
            let outcome = flight.completion.outcome();
            let Some(Err(Error::Timeout { waiting_for, detail, .. })) = &outcome else {
                panic!("seed {seed}, rank {rank}: {call:?} {outcome:?}");
            };
            assert_eq!(*waiting_for, [silent], "seed {seed}, rank {rank}: {call:?}");
            indirect += usize::from(detail.contains("for which rank"));
        }
    }
    assert!(indirect > 40, "{indirect} were named through others: too few to show anything");
}

/// What a connection that cannot be made means depends on whose fault it is.
#[test]
fn only_a_peer_that_is_gone_is_given_up_for_want_of_a_connection() {
    let call = SimCall { collective: Collective::Broadcast, algorithm: Algorithm::Linear, count: 1, root: 0 };
    let dials = |cluster: &Cluster| std::mem::take(&mut cluster.net.lock().unwrap().dials).len();
    let unconnected = |cluster: &mut Cluster, error: Error| {
        cluster.cores[1].as_mut().unwrap().handle_connection(0, Generation::FIRST, Err(error));
    };
    let silent = Error::Timeout {
        operation: "connecting".into(),
        waiting_for: vec![0],
        waited: Duration::from_secs(30),
        detail: "".into(),
    };
    let mut cluster = Cluster::new(1, 2);
    let first = cluster.submit(1, call, Duration::from_secs(60));
    assert_eq!(dials(&cluster), 1);
    // It may yet come, as long as the operation has time.
    unconnected(&mut cluster, silent.clone());
    assert_eq!((dials(&cluster), first.completion.outcome()), (1, None));
    let later = cluster.start + Duration::from_secs(61);
    cluster.cores[1].as_mut().unwrap().check(later);
    assert!(matches!(first.completion.outcome(), Some(Err(Error::Timeout { waiting_for, .. })) if waiting_for == [0]));
    unconnected(&mut cluster, silent);
    assert_eq!(dials(&cluster), 0, "nobody waits any more");
    // A want of descriptors here says nothing about the peer.
    let second = cluster.submit(1, call, FAR);
    assert_eq!(dials(&cluster), 1);
    unconnected(&mut cluster, Error::environment("no more open files", "raise the limit"));
    assert!(matches!(second.completion.outcome(), Some(Err(Error::Environment { .. }))));
    let third = cluster.submit(1, call, FAR);
    assert_eq!(dials(&cluster), 1, "it is tried again");
    let gone = Error::PeerFailed { rank: 0, operation: "connecting".into(), detail: "refused".into() };
    unconnected(&mut cluster, gone);
    assert!(matches!(third.completion.outcome(), Some(Err(Error::PeerFailed { rank: 0, .. }))));
    let fourth = cluster.submit(1, call, FAR);
    assert_eq!(dials(&cluster), 0);
    assert!(matches!(fourth.completion.outcome(), Some(Err(Error::PeerFailed { rank: 0, .. }))));
}
