//! Known mistakes, made on purpose: the checks are worth what they find.
//!
//! They are made where the machines meet the model, so that the machines themselves have no switches.

/// A mistake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Bug {
    /// None.
    #[default]
    None,
    /// The verdict follows the member that has come least far.
    VerdictByLeast,
    /// A report of an older view is taken for one of the view that is.
    StaleReports,
    /// An engine that has reported still passes the commit it had entered.
    GoesOnAfterReport,
    /// An engine says that it holds a step's results before it has entered the commit.
    ReportsEarly,
    /// An engine reports how far it was when it was told to stop, not when it stopped.
    ReportsBeforeStopping,
    /// A view is said before it is on the disk.
    SaysBeforeDisk,
    /// The disk loses its last state when the registry dies.
    DiskLosesLast,
    /// A registry that starts again begins with nothing.
    ForgetsAll,
    /// A member that is out goes on.
    IgnoresEviction,
    /// A member that stopped at a boundary is taken for one that is in a step, and the other way round.
    BoundaryUnknown,
    /// A step that does not count is applied all the same by those that hold it.
    AppliesWhatItHolds,
    /// Members have no time to come back to a registry that starts again.
    NoRestartGrace,
    /// A registry that was stopped takes the time for one in which it listened.
    CountsPauses,
}

impl Bug {
    pub(super) const ALL: [Bug; 13] = [
        Bug::VerdictByLeast,
        Bug::StaleReports,
        Bug::GoesOnAfterReport,
        Bug::ReportsEarly,
        Bug::ReportsBeforeStopping,
        Bug::SaysBeforeDisk,
        Bug::DiskLosesLast,
        Bug::ForgetsAll,
        Bug::IgnoresEviction,
        Bug::BoundaryUnknown,
        Bug::AppliesWhatItHolds,
        Bug::NoRestartGrace,
        Bug::CountsPauses,
    ];
}
