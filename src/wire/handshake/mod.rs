//! How two members prove to each other that they belong to one job, before a further byte is believed.
//!
//! ```text
//! initiator                                        responder
//!   Hello      who I am, whom I want, nonce   ->
//!                                             <-   Challenge  nonce, proof
//!   Proof      proof                          ->
//!                                             <-   Verdict    accepted or why not, proof
//! ```
//!
//! A proof is HMAC-SHA256 under the job's key over a label of its sender's role and everything said before: both nonces,
//! both ranks, generation, purpose and lane. Nonces are fresh on both sides, so nothing can be replayed; labels differ,
//! so nothing can be reflected. The responder proves itself first: an initiator that reached a stranger ends there.
//!
//! Every message begins with the same 12 bytes, and those and the refusal keep their layout in all versions, so that two
//! versions can always tell each other so. All sizes are fixed: whoever drives a machine here reads exactly
//! [`Initiator::wanted`] bytes and never a byte of what follows the handshake. `docs/wire-handshake.md` has the tables.
//!
//! The machines are pure: they take bytes and give bytes. Deadlines are their driver's.

mod key;
mod messages;
mod refusal;

#[cfg(test)]
mod tests;

pub use key::{JobDigest, JobKey, Proof};
pub use messages::{Hello, MAX_LANES, Nonce, Purpose, VERSION};
pub use refusal::{HandshakeError, Refusal};

use messages::{Body, Collector, Verdict};

/// The side that dialled.
#[derive(Debug)]
pub struct Initiator {
    key: JobKey,
    transcript: Vec<u8>,
    collector: Collector,
    output: Vec<u8>,
    state: InitiatorState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InitiatorState {
    AwaitsChallenge,
    AwaitsVerdict,
    Done,
    Failed,
}

impl Initiator {
    /// Begins with `hello`, whose nonce is fresh random.
    pub fn new(key: &JobKey, hello: &Hello) -> Self {
        let output = messages::encode_hello(hello);
        Self {
            key: key.clone(),
            transcript: output.clone(),
            collector: Collector::default(),
            output,
            state: InitiatorState::AwaitsChallenge,
        }
    }

    /// Takes the bytes that are to be sent now.
    pub fn poll_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// How many bytes are to be read next, exactly; 0 when it is over.
    pub fn wanted(&self) -> usize {
        match self.state {
            InitiatorState::Done | InitiatorState::Failed => 0,
            _ => self.collector.wanted(),
        }
    }

    /// Whether the responder has proved itself and accepted.
    pub fn is_accepted(&self) -> bool {
        self.state == InitiatorState::Done
    }

    /// Takes bytes in pieces of any size, but no more than [`Self::wanted`]. After an error it is over; what
    /// `poll_output` then has should still be sent.
    pub fn handle_input(&mut self, bytes: &[u8]) -> Result<(), HandshakeError> {
        let outcome = self.handle(bytes);
        if outcome.is_err() {
            self.state = InitiatorState::Failed;
        }
        outcome
    }

    fn handle(&mut self, bytes: &[u8]) -> Result<(), HandshakeError> {
        if bytes.len() > self.wanted() {
            return Err(HandshakeError::found(Refusal::Malformed("more bytes than asked for")));
        }
        let Some(message) = self.collector.take(bytes)? else {
            return Ok(());
        };
        match (self.state, message.body) {
            (_, Body::Refusal(refusal)) => Err(HandshakeError::told(refusal)),
            (InitiatorState::AwaitsChallenge, Body::Challenge { nonce, proof }) => {
                self.transcript.extend_from_slice(&nonce);
                if !self.key.verify("phalanx responder", &self.transcript, &proof) {
                    // It is told, so that it can count and log.
                    self.output = messages::encode_refusal(Refusal::WrongKey);
                    return Err(HandshakeError::found(Refusal::WrongKey));
                }
                self.output = messages::encode_proof(&self.key.prove("phalanx initiator", &self.transcript));
                self.state = InitiatorState::AwaitsVerdict;
                Ok(())
            }
            (InitiatorState::AwaitsVerdict, Body::Verdict(verdict, proof)) => {
                self.transcript.extend_from_slice(&messages::encode_verdict_body(verdict));
                if !self.key.verify("phalanx verdict", &self.transcript, &proof) {
                    return Err(HandshakeError::found(Refusal::WrongKey));
                }
                match verdict {
                    Verdict::Accepted => {
                        self.state = InitiatorState::Done;
                        Ok(())
                    }
                    Verdict::Refused(refusal) => Err(HandshakeError::told(refusal)),
                }
            }
            _ => Err(HandshakeError::found(Refusal::Malformed("a message out of turn"))),
        }
    }
}

/// Who a responder is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The job.
    pub job: JobDigest,
    /// The generation it serves.
    pub generation: crate::types::Generation,
    /// Its rank.
    pub rank: u32,
}

/// The side that accepted a connection.
#[derive(Debug)]
pub struct Responder {
    key: JobKey,
    identity: Identity,
    nonce: Nonce,
    transcript: Vec<u8>,
    collector: Collector,
    output: Vec<u8>,
    state: ResponderState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResponderState {
    AwaitsHello,
    AwaitsProof(Hello),
    /// The initiator has proved itself; the driver decides.
    Decides(Hello),
    Done(Hello),
    Failed,
}

impl Responder {
    /// Waits for a hello to `identity`. The nonce is fresh random.
    pub fn new(key: &JobKey, identity: Identity, nonce: Nonce) -> Self {
        Self {
            key: key.clone(),
            identity,
            nonce,
            transcript: Vec::new(),
            collector: Collector::default(),
            output: Vec::new(),
            state: ResponderState::AwaitsHello,
        }
    }

    /// Takes the bytes that are to be sent now.
    pub fn poll_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// How many bytes are to be read next, exactly; 0 when it is the driver's turn, or over.
    pub fn wanted(&self) -> usize {
        match self.state {
            ResponderState::AwaitsHello | ResponderState::AwaitsProof(_) => self.collector.wanted(),
            _ => 0,
        }
    }

    /// The hello of an initiator that has proved itself, when it is the driver's turn to decide.
    pub fn to_decide(&self) -> Option<Hello> {
        match self.state {
            ResponderState::Decides(hello) => Some(hello),
            _ => None,
        }
    }

    /// Takes bytes in pieces of any size, but no more than [`Self::wanted`]. After an error it is over; what
    /// `poll_output` then has should still be sent.
    pub fn handle_input(&mut self, bytes: &[u8]) -> Result<(), HandshakeError> {
        let outcome = self.handle(bytes);
        if let Err(error) = &outcome {
            self.state = ResponderState::Failed;
            // Whoever does not even speak this protocol gets no answer.
            if !error.by_peer && !matches!(error.refusal, Refusal::Malformed(_)) {
                self.output = messages::encode_refusal(error.refusal);
            }
        }
        outcome
    }

    fn handle(&mut self, bytes: &[u8]) -> Result<(), HandshakeError> {
        if bytes.len() > self.wanted() {
            return Err(HandshakeError::found(Refusal::Malformed("more bytes than asked for")));
        }
        let Some(message) = self.collector.take(bytes)? else {
            return Ok(());
        };
        match (self.state, message.body) {
            (_, Body::Refusal(refusal)) => Err(HandshakeError::told(refusal)),
            (ResponderState::AwaitsHello, Body::Hello(hello)) => {
                self.check(&hello).map_err(HandshakeError::found)?;
                self.transcript = message.bytes;
                self.transcript.extend_from_slice(&self.nonce);
                let proof = self.key.prove("phalanx responder", &self.transcript);
                self.output = messages::encode_challenge(&self.nonce, &proof);
                self.state = ResponderState::AwaitsProof(hello);
                Ok(())
            }
            (ResponderState::AwaitsProof(hello), Body::Proof(proof)) => {
                if !self.key.verify("phalanx initiator", &self.transcript, &proof) {
                    return Err(HandshakeError::found(Refusal::WrongKey));
                }
                self.state = ResponderState::Decides(hello);
                Ok(())
            }
            _ => Err(HandshakeError::found(Refusal::Malformed("a message out of turn"))),
        }
    }

    /// What makes a hello hopeless, whoever sent it. These answers are given before the initiator has proved anything,
    /// so they say nothing that a stranger could not learn anyway or use.
    fn check(&self, hello: &Hello) -> Result<(), Refusal> {
        if hello.job != self.identity.job {
            return Err(Refusal::WrongJob);
        }
        if hello.generation != self.identity.generation {
            return Err(Refusal::WrongGeneration { asked: hello.generation.0, serving: self.identity.generation.0 });
        }
        if hello.to != self.identity.rank || hello.from == self.identity.rank {
            return Err(Refusal::WrongRank { asked: hello.to, serving: self.identity.rank });
        }
        Ok(())
    }

    /// Accepts an initiator that has proved itself; send what `poll_output` has. Without one it does nothing.
    pub fn accept(&mut self) {
        if let ResponderState::Decides(hello) = self.state {
            self.give(Verdict::Accepted);
            self.state = ResponderState::Done(hello);
        }
    }

    /// Refuses an initiator that has proved itself; send what `poll_output` has. Without one it does nothing.
    pub fn refuse(&mut self, refusal: Refusal) {
        if let ResponderState::Decides(_) = self.state {
            self.give(Verdict::Refused(refusal));
            self.state = ResponderState::Failed;
        }
    }

    fn give(&mut self, verdict: Verdict) {
        self.transcript.extend_from_slice(&messages::encode_verdict_body(verdict));
        let proof = self.key.prove("phalanx verdict", &self.transcript);
        self.output = messages::encode_verdict(verdict, &proof);
    }
}
