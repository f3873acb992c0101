// @ts-check
// All views except the list: a module that is loaded when one of them is first opened.

/** The texts of these views. */
const V = {
  show: "Show", askedAt: "Asked to stop {0}, not stopped yet.", attempt: "attempt {0}",
  gone: "It is no longer there: deleted or expired.", metadata: "Metadata", response: "Response", raw: "Raw",
  noError: "It has not failed.", noResponse: "There is no response yet.", noMetadata: "It shows no metadata.",
  nothing: "There is no response.", showAll: "Show all ({0})", download: "Download ({0})",
  cut: "The first 64 KB of {0}.", moreItems: "{0} more", items: "{0} item{1}", fields: "{0} field{1}",
  yourself: "Ask for it yourself", facts: "Facts", trace: "Trace", logs: "Logs", began: "Began", endedAt: "Ended",
  due: "Due", beginBefore: "Begins before", priority: "Priority", origin: "Started by", rerunAs: "Started again as",
  failures: "Failed attempts", message: "Message",
  expires: "Expires", notBegun: "Not begun", running: "In progress", lost: "{0} lost before", attempts: "Attempts", attemptHead: "Attempt",
  updated: "Last change", waited: "waited {0}", ran: "ran {0}", inFuture: "in {0}",
  retryAfter: "Try again after {0}.", window: "Window", minutes60: "60 minutes", hours6: "6 hours",
  hours72: "72 hours", noTally: "This service keeps no statistics.", now: "In progress now",
  nowNone: "Nothing is in progress.", waitingWord: "Waiting", runningWord: "Running", runningNow: "Running now", waitingNow: "Waiting now", inWindow: "{0}, {1}", oldest: "Oldest",
  perStep: "Ended, per {0}", queueTime: "Time in the queue", runTime: "Time at work", byCode: "Failures by code",
  noFailures: "No failures.", leases: "Who holds leases", noLeases: "No worker holds any.", owner: "Worker",
  number: "Operations", lostWorkers: "Lost workers", refusedWrites: "Refused writes",
  asTable: "As a table", time: "Time", succeeded: "Succeeded", failedWord: "Failed",
  cancelled: "Cancelled", counted: "Counted every {0} s. In progress: read at {1}, at most {2}.",
  summary: "{0}: {1} in all, most {2} at {3}.", summaryTime: "{0}: p50 about {1}, p95 about {2} over the window. The axis is logarithmic.", about: "{0} (about)", axis: "logarithmic",
  noData: "Nothing was counted.", request: "Request", path: "Path", concurrency: "At once", rate: "Rate", unlimited: "any number",
  timeLimit: "Time limit", noLimit: "none", keepFor: "Kept for",
  begins: "Begins", filterFields: "Filter by", type: "Type", example: "Example",
  rerun: "Start again", rerunTitle: "Start {0} again?", yesRerun: "Yes, start",
  rerunWhy: "A new operation begins, with the same request.",
  pause: "Pause", resume: "Resume", pauseTitle: "Pause {0}?", yesPause: "Yes, pause",
  pauseWhy: "No process begins its work until it is resumed. Starts are accepted, and wait.",
  schedules: "Schedules", when: "When", nextTick: "Next tick", paused: "Paused since", share: "Share", see: "See its operations", noMethods: "The server does not say which methods it has.", code: "Code",
};
