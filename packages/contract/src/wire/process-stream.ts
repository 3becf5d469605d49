/**
 * The web socket at `{toolbox_proxy_url}/{vm_id}/process/stream`: a command with its streams, live.
 *
 * The client's first message is a `ProcessStreamStart` as text. After it, binary messages carry data both ways:
 * one byte of channel, then the data. Text messages are the control messages below. The server's last message
 * is `exit` or `error`. A client that goes away ends its command. docs/toolbox.md has the whole of it.
 * No import here may cost anything: the command line loads this file at every start.
 */

/** First byte of a binary message. */
export const PROCESS_CHANNEL = { stdin: 0, stdout: 1, stderr: 2 } as const;

/** A good size for the data of one binary message, in bytes; larger ones are taken too, up to 4 MiB. */
export const PROCESS_STREAM_CHUNK_BYTES = 64 * 1024;

export interface TerminalSize {
  rows: number;
  cols: number;
}

/** Exactly one of `argv` and `command` (run by `/bin/sh -c`). */
export interface ProcessStreamStart {
  type: 'start';
  argv?: string[];
  command?: string;
  cwd?: string;
  env?: Record<string, string>;
  /** Name or uid, optionally `:group`; the image's when absent. */
  user?: string;
  /** Whether stdin will be sent; otherwise it is at its end from the start. */
  stdin?: boolean;
  /** A terminal of this size; then everything comes on stdout. */
  pty?: TerminalSize;
  /** Seconds after which the command is ended; none when absent. */
  timeout?: number;
}

export type ProcessStreamClientMessage =
  /** Nothing more comes on stdin. */
  { type: 'stdin-end' } | ({ type: 'resize' } & TerminalSize) | { type: 'signal'; signal: string };

export type ProcessStreamServerMessage =
  /** As a shell counts: 128 + n after signal n, 126 and 127 when it could not start, with the reason in `error` and on stderr. */
  | { type: 'exit'; exit_code: number; timed_out: boolean; signal?: string; error?: string }
  /** Something that was asked for on the way could not be done; the command goes on. */
  | { type: 'warning'; error: string }
  | { type: 'error'; status: number; error: string };
