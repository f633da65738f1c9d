# The bugs that check.sh seeds, by the promise that each breaks. A bug has a name and says what is wrong with it; changes
# one place of one file, by text that stands there exactly once; and names the one test that must fail.
#
# When the text has moved on, or the test has another name, bring the bug up to date rather than drop it.
# shellcheck shell=bash disable=SC2016

# How long these wait before they report that something does not come. With a bug it never comes.
patience src/transport/conformance/world.rs 'from_secs(120)' 'from_secs(5)'
patience tests/launcher/support.rs 'from_secs(60)' 'from_secs(8)'

# The same bits on every rank, and the right ones.

bug drops-the-tail 'a reduction leaves out its last element'
change src/reduce/kernel.rs \
    'while at < range.end {' \
    'while at + 1 < range.end {'
caught_by --lib reduce::tests::matrix::one_run_may_be_several_sources_and_the_target_too

bug adds-halves-in-halves 'the sum of halves is rounded after every addition'
change src/reduce/kernel.rs \
    'value[lane] = O::apply(value[lane], other[lane]);' \
    'value[lane] = O::apply(value[lane], other[lane]);
     let mut stored = [0; 8];
     [value[lane]] = unsafe { S::write(stored.as_mut_ptr(), [value[lane]]); S::read(stored.as_ptr()) };'
caught_by --lib reduce::tests::special::halves_are_rounded_once

bug sends-partial-sums-as-halves 'partial sums of halves travel as halves'
change src/executor/operation.rs \
    'work.dtype.is_half() && work.schedule.partials_travel' \
    'work.dtype.is_half() && false'
caught_by '--test collectives' order::halves_are_rounded_once

bug sends-the-wrong-chunk 'the ring passes on the part after the one it should'
change src/schedule/algorithms/ring.rs \
    'if step == 0 { own } else { parts[group.before(step)] }' \
    'if step == 0 { own } else { parts[group.after(step)] }'
caught_by --lib schedule::verify::tests::every_algorithm_is_right_for_small_worlds_in_many_variations

bug reduces-in-the-wrong-order 'contributions are reduced from the last rank to the first'
change src/schedule/algorithms/direct.rs \
    'builder.reduce(contributions, target, finish);' \
    'builder.reduce(contributions.into_iter().rev().collect(), target, finish);'
caught_by '--test collectives' order::deterministic_means_rank_order_whatever_the_algorithm

bug takes-the-plan-of-another-order 'a deterministic call takes the plan of one that is not'
change src/comm/plans.rs \
    '            deterministic,
            boards,
        };' \
    '            deterministic: false,
            boards,
        };'
caught_by '--test collectives' order::deterministic_means_rank_order_whatever_the_algorithm

bug proves-nothing-about-finishing 'the verifier does not look whether a result was finished'
change src/schedule/verify/meaning.rs \
    'if !machine.expressions.is_finished(id) {' \
    'if false {'
caught_by --lib schedule::verify::tests::a_result_finished_twice_or_never_is_noticed

bug proves-nothing-about-reads 'the verifier allows a read beside a write of the same'
change src/schedule/verify/race.rs \
    'for read in &reads {' \
    'for read in reads.iter().take(0) {'
caught_by --lib schedule::verify::tests::races_are_noticed

# No call waits for ever.

bug forgets-the-deadline 'an operation past its deadline waits on'
change src/executor/core/late.rs \
    'operation.deadline.has_passed(now)' \
    'false'
caught_by --lib executor::simulation::tests::a_timeout_on_one_rank_ends_the_operation_on_all

bug blames-its-neighbour 'a timeout names the rank that is waited for, though that one waits for another itself'
change src/executor/core/late.rs \
    'operation.waits.silent(own, &self.waiting_for(operation));' \
    'self.waiting_for(operation).into_iter().map(|rank| (rank, own)).collect::<Vec<_>>();'
caught_by --lib executor::simulation::tests::the_silent_rank_is_named_and_no_other

# A mismatched call is an error.

bug signs-no-operation 'the signature does not say which operation'
change src/comm/call.rs \
    'op: self.reduction.as_ref().map(|reduction| reduction.op),' \
    'op: None,'
caught_by --lib comm::call::tests::signatures_tell_calls_apart_that_would_not_meet

bug signs-no-order 'the signature does not say whether rank order is wanted'
change src/comm/call.rs \
    'digest.add(&[u8::from(deterministic)]);' \
    ''
caught_by --lib comm::call::tests::signatures_tell_calls_apart_that_would_not_meet

bug signs-no-function 'the signature does not say which function of the user reduces'
change src/comm/call.rs \
    'digest.add(name.as_bytes());' \
    'let _ = name;'
caught_by --lib comm::call::tests::signatures_tell_calls_apart_that_would_not_meet

bug keeps-a-mismatch-to-itself 'the peer whose call differs is not told'
change src/transport/stream/core.rs \
    'if tell {
            self.control.push_back(Frame::Differs' \
    'if false {
            self.control.push_back(Frame::Differs'
caught_by --lib transport::stream::tests::one_lane::another_call_is_told_on_both_sides

# One outcome, and a fallen rank.

bug keeps-an-abort-to-itself 'a rank that gives an operation up tells nobody'
change src/executor/core/given_up.rs \
    '        self.end(slot, Err(self.seen(tag.communicator, cause.clone())));
        if tell {' \
    '        self.end(slot, Err(self.seen(tag.communicator, cause.clone())));
        if false {'
caught_by --lib executor::simulation::tests::a_timeout_on_one_rank_ends_the_operation_on_all

bug keeps-a-loss-to-itself 'a rank that gives another one up tells nobody'
change src/executor/core/peers.rs \
    '        } else if tell {' \
    '        } else if false {'
caught_by --lib executor::simulation::tests::a_rank_that_one_gives_up_is_given_up_by_all

bug fails-one-operation-of-the-dead 'only one of the operations in flight with a dead rank fails'
change src/executor/core/peers.rs \
    'self.fail(slot, failure, true);' \
    'self.fail(slot, failure, true);
     break;'
caught_by --lib executor::simulation::tests::a_death_reaches_every_rank_and_is_named

bug leaves-one-waiting 'of two processes with the same rank, the second is not told'
change src/membership/gathering.rs \
    '.map(|arrival| arrival.connection).chain(also).collect();' \
    '.map(|arrival| arrival.connection).chain(also.filter(|_| false)).collect();'
caught_by --lib membership::gathering::tests::two_processes_of_one_rank_are_both_named

# A stopped and revived rank can do no harm.

bug hears-another-generation 'frames of another generation are taken for this one'\''s'
change src/transport/stream/incoming.rs \
    'if header.generation != self.generation {' \
    'if false {'
caught_by --lib transport::stream::tests::hostile::another_generation_is_fenced

bug lets-another-generation-in 'the handshake accepts another generation'
change src/wire/handshake/mod.rs \
    'if hello.generation != self.identity.generation {' \
    'if false {'
caught_by --lib wire::handshake::tests::both_sides_say_why

# Strangers are kept out.

bug believes-any-proof 'the handshake accepts any code'
change src/wire/handshake/key.rs \
    'self.code(label, transcript).ct_eq(proof).into()' \
    'self.code(label, transcript).ct_eq(proof).unwrap_u8() < 2'
caught_by --lib wire::handshake::tests::an_initiator_that_knows_no_key_is_found_out

bug repeats-its-nonce 'every challenge is the same, so that a recorded answer fits'
change src/transport/connect/driver.rs \
    'Responder::new(&self.config.key, self.identity, random()?)' \
    'Responder::new(&self.config.key, self.identity, [7; 32])'
caught_by --lib transport::connect::tests::every_challenge_is_another

bug believes-a-length 'a notice may be as long as its header says'
change src/wire/frame.rs \
    'if length > most {' \
    'if false {'
caught_by --lib wire::frame::tests::errors_say_what_was_found

bug overfills-the-ring 'the writer of a shared ring takes one byte more than there is room for'
change src/transport/ring.rs \
    '(self.size - (self.head - self.tail_seen)) as usize' \
    '(self.size + 1 - (self.head - self.tail_seen)) as usize'
caught_by --lib transport::ring::tests::behaves_like_a_queue

# A clean end is clean.

bug loses-the-last-words 'what a peer wrote just before it went is lost'
change src/transport/shm.rs \
    'let known = self.reader.known();
        if known > 0 {' \
    'let known = self.reader.known();
        if false {'
caught_by --lib transport::shm::tests::the_last_look_is_for_the_last_words

bug leaves-grandchildren 'of a tree of processes only the children are ended'
change src/launch/tree.rs \
    'next.push(child);' \
    ''
caught_by --lib launch::tree::tests::children_and_their_children_are_found

bug leaves-the-rest 'what a rank leaves behind is never killed'
change src/launch/guard.rs \
    'Some(Last::Asked { kill_at }) if now < kill_at => Some(kill_at - now),' \
    'Some(Last::Asked { kill_at }) if now < kill_at || self.worker.is_none() => Some(AGAIN),'
caught_by '--test launcher' orphans::what_a_rank_leaves_behind_ends_with_it

bug outlives-the-launcher 'a guard whose launcher is gone lets its rank live'
change src/launch/guard.rs \
    'if ended {' \
    'if false {'
caught_by '--test launcher' orphans::killing_the_launcher_leaves_no_process

bug spares-what-is-left-behind 'a second interrupt spares what ranks that have ended left behind'
change src/launch/supervise.rs \
    'if !matches!(life, Life::Gone { .. } | Life::Waiting) {' \
    'if matches!(life, Life::Starting | Life::Running) {'
caught_by --lib launch::supervise::tests::what_a_rank_left_behind_is_killed_with_the_others

bug takes-a-fall-for-an-end 'a member that is dropped says that its work is done'
change src/elastic/mod.rs \
    'self.end(Parting::Unsaid, "it ended");' \
    'self.end(Parting::Done, "it ended");'
caught_by '--test launcher' elastic::one_that_fails_is_replaced_whatever_goodbye_it_says

bug takes-a-leave-for-an-end 'a job is done when all its members left as they were asked to'
change src/launch/fleet/machine.rs \
    'let end = if self.is_done { Cause::Done } else { Cause::CannotGoOn };' \
    'let end = Cause::Done;'
caught_by '--test launcher' elastic::members_that_are_all_asked_to_leave_are_no_job_that_is_done

bug asks-all-to-leave 'an empty list of hosts has all members asked to leave'
change src/launch/fleet/machine/surplus.rs \
    'have > self.limits.sizes.min_np' \
    'have > 0'
caught_by --lib launch::fleet::machine::tests::surplus::a_list_without_room_for_the_members_that_the_job_needs_does_not_end_it

bug replaces-in-a-hot-loop 'one that falls as soon as it has joined is replaced at once'
change src/launch/fleet/machine/ends.rs \
    'worker.is_proven || is_unheard' \
    'worker.has_joined || is_unheard'
caught_by --lib launch::fleet::machine::tests::ends::newcomers_that_fall_as_soon_as_they_have_joined_are_spaced_and_their_place_is_given_up

bug leaves-half-a-ring-mapped 'one of the two mappings of a shared ring is never taken down'
change src/sys/memory.rs \
    'munmap(self.start.as_ptr().cast(), 2 * self.bytes)' \
    'munmap(self.start.as_ptr().cast(), self.bytes)'
caught_by '--test leaks' a_world_leaves_nothing_behind

# One build for every machine.

bug knows-one-name-of-a-library 'a library is looked for under its first name only'
change src/observe/doctor/libraries.rs \
    'for &name in candidate.names {' \
    'for &name in candidate.names.iter().take(1) {'
caught_by --lib observe::doctor::libraries::tests::a_library_that_is_there_is_found_and_one_that_is_not_is_listed

# Nothing is assumed silently.

bug takes-half-a-world-for-one 'a size without a rank makes a world of one'
change src/bootstrap/environment.rs \
    '(None, None) => Ok(None),
        (Some(_), None)' \
    '(None, _) | (_, None) => Ok(None),
        (Some(_), None)'
caught_by '--test bootstrap' environment::the_table_holds

bug takes-what-is-forbidden 'a rank that demands shared memory lets itself be dialled over TCP'
change src/transport/connect/peers.rs \
    'TransportPolicy::Shm => is_unix,' \
    'TransportPolicy::Shm => true,'
caught_by --lib transport::connect::tests::a_forbidden_carrier_is_refused_by_the_side_that_is_dialled

# Ahead of the peers, with every element checked.

bug checks-one-element 'the bench looks at the first element of a result only'
change src/cli/bench/layout.rs \
    'let wrong = answer.iter().enumerate().filter(' \
    'let wrong = answer.iter().enumerate().take(1).filter('
caught_by '--bin phalanx' cli::bench::layout::tests::outputs_are_poisoned_until_they_hold_the_answer

# A fallen rank, a stopped one, one that is cut off.

bug counts-its-own-absence 'time in which the registry did not run counts as silence of the members'
change src/membership/registry/lateness.rs \
    'if late.is_zero() {' \
    'if true {'
caught_by --lib membership::registry::tests::evidence::silence_is_counted_only_while_the_registry_listens

bug waits-for-the-kernel-to-give-up 'a host that owes an answer is not looked at'
change src/membership/registry/evidence.rs \
    'if quiet >= self.config.heartbeat_limit {' \
    'if false {'
caught_by --lib membership::registry::tests::evidence::a_host_that_owes_an_answer_is_out_at_the_limit_and_a_stopped_process_is_not

bug looks-at-its-own-question 'a stopped process is out because its host has not answered the question of this moment'
change src/membership/registry/evidence.rs \
    'if unanswered >= limit {' \
    'if true {'
caught_by --lib membership::registry::tests::evidence::an_answer_that_is_late_is_waited_for_until_the_limit

bug stalls-for-ever 'a member whose operations stand still and whose registry is away waits without end'
change src/membership/member/mod.rs \
    'self.stalled_since.get_or_insert(now);' \
    ''
caught_by --lib membership::member::tests::operations_that_do_not_advance_need_the_registry_s_word

bug makes-groups-of-the-past 'a group that is made of an old communicator waits for members that do not come'
change src/executor/core.rs \
    'channel.over = self.is_over(id);' \
    ''
caught_by '--test elastic' groups::groups_end_when_a_member_is_taken_out

bug keeps-the-fallen-as-peers 'who is not in the next view stays a peer'
change src/executor/core/views.rs \
    'if !is_member[slot] {' \
    'if false {'
caught_by --lib executor::engine::tests::who_is_not_in_the_next_view_is_lost_to_nobody

bug mends-links-at-the-limit 'a link between two that live is made again after the heartbeat limit'
change src/membership/registry/links.rs \
    '<= QUICK && self.links.asked.insert(of)' \
    '<= 0 && self.links.asked.insert(of)'
caught_by --lib membership::registry::tests::evidence::a_lost_link_between_two_that_live_is_made_again_at_once_in_a_view_of_the_same_members

bug takes-broken-links 'a connection that was begun before a link was known to be broken is taken for the new one'
change src/transport/connect/peers.rs \
    'if hello.generation < peer.since {' \
    'if false {'
caught_by --lib transport::connect::tests::a_link_that_is_broken_is_not_made_again_by_who_has_not_heard_that_it_is

bug answers-before-the-disk 'a goodbye is answered before the disk has it'
change src/membership/registry/evidence.rs \
    'partition(|(at, _)| *at <= persisted);' \
    'partition(|(at, _)| *at <= persisted + 1);'
caught_by --lib membership::registry::tests::restarts::goodbyes_are_answered_when_the_disk_has_them

bug shares-the-state-file 'the file that takes the place of the locked one is not locked'
change src/elastic/state_file.rs \
    'rustix::fs::flock(&new, FlockOperation::NonBlockingLockExclusive)?;' \
    ''
caught_by --lib elastic::state_file::tests::a_file_has_one_owner_through_all_its_replacements

# Calls over boards of shared memory.

bug overwrites-lines 'a line is written before all have written the one before, while some still read what lies there'
change src/executor/in_host/mod.rs \
    'if !peer.has_written(before) {' \
    'if false {'
caught_by '--test collectives' boards::a_root_that_runs_ahead_overwrites_nothing

bug overwrites-chunks 'a place in the stage is used again before all are done with it'
change src/executor/in_host/mod.rs \
    'self.peers.iter().all(|peer| peer.part.has_counted(Count::Done, wanted))' \
    'wanted < u64::MAX'
caught_by '--test collectives' boards::a_root_that_runs_ahead_overwrites_nothing

bug takes-what-was-taken-back 'a rank that comes late takes the line of one that has given the call up'
change src/transport/board/order.rs \
    'has_reached(line, number) && given_up.load(Ordering::Relaxed) > number' \
    'has_reached(line, number) && given_up.load(Ordering::Relaxed) > 0'
caught_by --lib transport::board::tests::a_line_that_was_taken_back_is_not_shown

bug writes-on-too-soon 'memory of a call that was given up is written before others can see that it was'
change src/transport/board/order.rs \
    'given_up.store(first, Ordering::Relaxed);
    C::fence(Ordering::Release);' \
    'given_up.store(first, Ordering::Release);'
caught_by loom transport::board::order::loom_tests::loom_what_is_read_of_a_call_that_was_given_up_is_not_believed

bug looks-too-soon 'the look at the epoch is not kept behind what was read before it'
change src/transport/board/order.rs \
    'C::fence(Ordering::Acquire);
    epoch.load(Ordering::Relaxed) == number' \
    'epoch.load(Ordering::Acquire) == number'
caught_by loom transport::board::order::loom_tests::loom_what_is_read_of_another_epoch_is_not_believed

bug forgets-who-differed 'a call of which nothing was needed is never compared'
change src/executor/in_host/mod.rs \
    'if let (true, Some(last)) = (peer.compared < before, self.last)' \
    'if let (false, Some(last)) = (peer.compared < before, self.last)'
caught_by '--test collectives' mismatches::what_is_told_late_has_the_number_of_the_operation_that_differed

bug reuses-parts 'a part of a board is taken again while peers may read it'
change src/transport/board.rs \
    '!place.taken && place.readers.iter().zip(&place.parts).all(has_left)' \
    '!place.taken && place.readers.iter().zip(&place.parts).all(|_| true)'
caught_by --lib transport::board::tests::a_part_is_taken_again_when_all_who_may_read_it_have_left

bug keeps-the-epoch 'who reads on does not notice that a part is another communicator now'
change src/transport/board.rs \
    '*epochs += 1;' \
    '*epochs = 1;'
caught_by --lib transport::board::tests::who_reads_on_notices_that_a_part_is_another_s

# Buffers that others read where they are.

bug lets-go-too-soon 'a call ends while others still read this rank memory'
change src/executor/in_host/direct.rs \
    'reads && !peer.part.has_counted(Count::Done, self.block(self.cut.chunks))' \
    'reads && !peer.part.has_counted(Count::Done, self.block(0).min(1))'
caught_by '--test collectives' registered::what_others_still_read_stays

bug believes-what-was-given-up 'what was read of a rank that has given the call up counts'
change src/executor/in_host/direct.rs \
    '!self.peers.iter().all(|peer| peer.part.still_shows_line(run.line))' \
    '!self.peers.iter().all(|peer| peer.part.still_shows_line(0))'
caught_by --lib executor::in_host::direct::tests::what_was_read_of_a_call_given_up_is_no_result

bug reads-another-process 'memory of whatever process has the number now counts as that of a rank'
change src/transport/foreign.rs \
    'if word == self.word {' \
    'if word == self.word || true {'
caught_by --lib transport::foreign::tests::another_process_under_the_same_number_is_found_out

bug offers-what-cannot-be-read 'memory that no peer can read is offered to them'
change src/executor/in_host/direct.rs \
    'let readable = reads(start) && reads(start.wrapping_add(bytes - 1));' \
    'let _ = reads(start); let readable = true;'
caught_by --lib executor::in_host::direct::tests::memory_that_cannot_be_read_goes_through_the_stage

bug straddles-the-stage 'a chunk begins at the last block of the stage and goes on in what lies behind it'
change src/executor/in_host/run.rs \
    'self.base = blocks.next_multiple_of(self.cut.blocks);' \
    'self.base = blocks;'
caught_by '--test collectives' boards::chunks_of_all_sizes_follow_each_other

bug gives-out-what-is-in-use 'memory for a buffer is given out a second time'
change src/transport/heap.rs \
    'let (rest, end) = (first + bytes, start + length);' \
    'let (rest, end) = (first + bytes / 2, start + length);'
caught_by --lib transport::heap::tests::ranges_are_taken_and_given_back

bug believes-offsets 'a place in a heap that a peer tells is not checked'
change src/transport/board.rs \
    '(end <= heap.bytes()).then(|| heap.start()' \
    '(end > 0).then(|| heap.start()'
caught_by --lib transport::board::tests::a_place_that_is_not_in_the_heap_is_none

bug chooses-by-its-own-figures 'a rank chooses by the figures that it measured itself'
change src/schedule/cost/basis.rs \
    'known.map(|known| known.into_iter().fold(Figures::default(), Figures::worse))' \
    'known.map(|known| known[own])'
caught_by --lib schedule::cost::basis::tests::ranks_that_measured_differently_choose_alike

bug tunes-by-its-own-times 'a rank keeps the algorithm that was fastest for itself'
change src/schedule/cost/tune.rs \
    'let timed = self.candidates.iter().zip(largest).filter(|(_, time)| **time > 0);' \
    'let _ = largest;
        let own = self.times();
        let timed = self.candidates.iter().zip(&own).filter(|(_, time)| **time > 0);'
caught_by --lib schedule::cost::tune::tests::ranks_stay_together_whatever_each_measures

bug closes-nothing-twice 'a forked child closes the descriptor that it puts in place of others while it still needs it'
change src/sys/fork.rs \
    'if fd == nothing {' \
    'if fd < 0 {'
caught_by --lib sys::fork::tests::a_number_that_is_not_open_yet_is_taken_all_the_same

bug frees-what-is-read 'a send is told as complete while the adapter reads from its memory'
change src/transport/stream/mod.rs \
    'Some(Written { owner, loan: Some(loan) }) => lane.lent.push_back((owner, loan)),' \
    'Some(Written { owner, loan: Some(_) }) => self.core.finish_body(owner),'
caught_by --lib transport::rdma::tests::memory_is_on_loan_until_the_adapter_has_done_with_it

bug gives-up-what-is-read 'a call that is given up does not wait until the adapter has done with its memory'
change src/transport/rdma/lane.rs \
    'self.await_loans();' \
    ''
caught_by --lib transport::rdma::tests::giving_up_waits_for_the_adapter

bug registers-what-is-freed 'memory that is given back stays registered'
change src/transport/heap.rs \
    'tenant.forget(self.start());' \
    'let _ = tenant;'
caught_by --lib transport::rdma::registrations::tests::a_buffer_is_registered_once_and_forgotten_with_its_memory

# Kernels, and allreduces over memory of peers.

bug contracts-in-kernels 'NVRTC may round a * b + c once, where the host rounds twice'
change src/device/sources.rs \
    '["--std=c++17", "--fmad=false"]' \
    '["--std=c++17", "--fmad=true"]'
caught_by --lib device::sources::tests::whoever_compiles_the_kernels_rounds_twice

bug lets-the-driver-read-on 'a section of compiled kernels may reach beyond their end'
change src/device/image.rs \
    'if has_content && !within(start, length) {' \
    'if has_content && !is_section && !within(start, length) {'
caught_by --lib device::image::tests::an_elf_file_holds_all_that_it_speaks_of

bug meets-after-giving-up 'a kernel that follows one which gave up raises its flags'
change kernels/peer.cuh \
    'if (is_out) return false;' \
    '(void)is_out;'
caught_by '--test kernels' peers::whoever_gave_up_raises_no_flag_and_writes_nothing_that_others_read

bug fills-what-others-read 'a rank that gave up writes what the others may still read'
change kernels/peer.cuh \
    'if (observe(p.status) == 0) Scaler<ELEMENT>::scale(p.scale);' \
    'Scaler<ELEMENT>::scale(p.scale);'
caught_by '--test kernels' peers::whoever_gave_up_raises_no_flag_and_writes_nothing_that_others_read

bug leaves-kernels-waiting 'a kernel is not told to give up'
change src/comm/device/over_peers.rs \
    'self.peers.abort();' \
    ''
caught_by '--test device' over_peers::a_launch_that_fails_ends_the_kernels_that_wait_for_it
