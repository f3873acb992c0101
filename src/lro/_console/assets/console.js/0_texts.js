// @ts-check
// The files of this folder are joined in the order of their names, and served as one script. The
// server removes comments and spaces, so write a space after a division sign, nest no backquotes.
"use strict";

/** The texts of the page. `put` replaces {0} and {1}. */
const T = {
  skip: "Skip to the content", views: "Views", operations: "Operations", overview: "Overview", methods: "Methods",
  live: "Live", down: "Not connected", paused: "Paused", pause: "Pause live updates (p)", resume: "Continue live updates (p)",
  theme: "Theme: {0} (t)", help: "Keys and settings (?)",
  idle: "Paused after 5 minutes without a touch. Move on to continue.", retry: "Try now",
  retrying: "{0} Trying again in {1}.", offline: "The server cannot be reached.",
  notName: "That is not the name of an operation.",
  unreadable: "The server answered with something that is not JSON.", quiet: "The stream fell silent.",
  close: "Close", copy: "Copy {0}", copied: "Copied", copyThis: "Copy this text", name: "name", nameHead: "Name", newer: "{0} new",
  filter: "Filter", filterHint: "An AIP-160 filter, such as error.code = 14", apply: "Apply", clear: "Clear",
  parent: "Parent", noParent: "no parent", state: "State", anyMethod: "Any method", method: "Method",
  created: "Created", anyTime: "Any time", hour: "Last hour", day: "Last day", week: "Last week", since: "Since {0}",
  custom: "Since a time…", sinceTime: "Created since", progress: "Progress", took: "Took", error: "Error",
  mark: "Mark {0}", markAll: "Mark all that are shown", empty: "There are no operations yet.",
  none: "No operation matches this filter.", short: "Looked back to {0}, found {1} so far.",
  shortNone: "Found none so far, and there is more to look through.", further: "Look further", more: "Show more",
  end: "That is all: {0}.", left: "{0} left", ago: "{0} ago", waiting: "waits for a worker", waitsUntil: "waits until {0}", marked: "{0} marked",
  everything: "all that the filter matches", cancel: "Cancel", delete: "Delete", ended: "{0} ended",
  failed: "{0} failed", arrived: "{0} new", stopAsked: "Asked to stop", yes_cancel: "Yes, cancel", yes_delete: "Yes, delete", dontCancel: "Keep it running",
  dontDelete: "Keep", cancelTitle: "Cancel {0}?", deleteTitle: "Delete {0}?",
  cancelMany: "Ask these operations to stop.", deleteMany: "Remove the records of these operations.",
  deleteOne: "Its record is removed, with its result.",
  goesOn: "The work is still in progress, and Delete does not stop it. To stop it, cancel it first.",
  cancelFirst: "Cancel instead", doing: "{0} of {1} done", stopped: "Stopped: the server allows no more. {0}",
  finished: "{0} done, {1} refused.", limited: "Only the first 1,000 of them.",
  collecting: "Looking for what matches: {0} so far", noneOpen: "None of them is in progress.", okCancelled: "asked to stop", okDeleted: "deleted",
  stop: "Stop",
  reach: {
    NOT: "The service cannot stop work that has begun: it will run to its end. What waits will not begin.",
    COOPERATIVE: "The work stops when it next looks whether it should. That may take a while.",
    AT_AWAIT: "The work is interrupted at its next await.",
    FORCED: "The work may stop by itself; if it does not, its process is ended.",
    "": "The work is asked to stop. Whether it does, and when, is up to the service.",
  },
  states: { WAITING: "Waiting", IN_PROGRESS: "In progress", STOPPING: "Stopping", SUCCEEDED: "Succeeded", FAILED: "Failed", CANCELLED: "Cancelled", GONE: "Gone" },
  token: "A token for the API",
  tokenWhy: "The server asks who you are. The token is sent as Authorization: Bearer, and kept until this tab is closed.",
  tokenUse: "Use it", tokenForget: "Forget the token", tokenGive: "Give a token", keysTitle: "Keys and settings",
  keysOn: "Single keys are on", caller: "You are {0}.", version: "lro {0}",
  keys: [["/", "go to the filter"], ["j  k  ↓  ↑", "next and previous operation"], ["Enter", "open it"], ["x", "mark it"], ["c", "cancel"], ["d", "delete"], ["r", "refresh"], ["p", "pause and continue live updates"], ["t", "theme: as the system, light, dark"], ["?", "this help"]],
};

/** Fill in a text. @param {string} text @param {...(string|number)} parts */
const put = (text, ...parts) => text.replace(/\{(\d)\}/g, (_, at) => String(parts[at]));
