//! Elastic jobs whose members are threads of this process, each with an engine, a connector and a control thread of its
//! own, around a real registry.

mod churn;
mod groups;
mod rejoin;
mod steps;
mod strangers;
mod support;
mod views;
