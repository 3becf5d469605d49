/** The messages of WebSockets, for documents: OpenAPI has no form of its own for them. */
import { Type } from 'typebox';
import type { WebSocketDescription } from './platform/operation.ts';

const Env = Type.Record(Type.String(), Type.String({ writeOnly: true }));

export const ProcessStart = Type.Object(
  {
    type: Type.Literal('start'),
    argv: Type.Optional(Type.Array(Type.String())),
    command: Type.Optional(Type.String({ description: 'Run by `/bin/sh -c`, instead of `argv`.' })),
    cwd: Type.Optional(Type.String()),
    env: Type.Optional(Env),
    user: Type.Optional(
      Type.String({ description: "Name or uid, optionally `:group`. Default: the image's." }),
    ),
    stdin: Type.Optional(
      Type.Boolean({ description: 'Standard input will be sent; otherwise it is empty.' }),
    ),
    pty: Type.Optional(
      Type.Object(
        {
          rows: Type.Integer({ minimum: 1, maximum: 4096 }),
          cols: Type.Integer({ minimum: 1, maximum: 4096 }),
        },
        { description: 'A terminal of this size; then all output is on channel 1.' },
      ),
    ),
    output_end: Type.Optional(Type.Boolean({ description: 'The server sends `output-end`.' })),
    timeout: Type.Optional(
      Type.Number({ description: 'Seconds after which the command is ended. Default: none.' }),
    ),
  },
  { description: 'The first message of the client.' },
);
export const ProcessStdinEnd = Type.Object({ type: Type.Literal('stdin-end') });
export const ProcessResize = Type.Object({
  type: Type.Literal('resize'),
  rows: Type.Integer(),
  cols: Type.Integer(),
});
export const ProcessSignal = Type.Object({
  type: Type.Literal('signal'),
  signal: Type.String({ description: 'As in `SIGINT`; to the process group of the command.' }),
});
export const ProcessOutputEnd = Type.Object({ type: Type.Literal('output-end'), channel: Type.Integer() });
export const ProcessExit = Type.Object({
  type: Type.Literal('exit'),
  exit_code: Type.Integer({
    description: 'As a shell counts: 128 + n after signal n, 126 and 127 if it did not start.',
  }),
  timed_out: Type.Boolean(),
  signal: Type.Optional(Type.String()),
  error: Type.Optional(Type.String({ description: 'Why it did not start.' })),
});
export const ProcessWarning = Type.Object({
  type: Type.Literal('warning'),
  error: Type.String({ description: 'A message of the client failed; the command continues.' }),
});
export const ProcessError = Type.Object({
  type: Type.Literal('error'),
  status: Type.Integer(),
  error: Type.String(),
});

const policy = 'The first message is not valid, or the sandbox refuses; the reason says why.';

export const PROCESS_STREAM_SOCKET: WebSocketDescription = {
  client: {
    text: Type.Union([ProcessStart, ProcessStdinEnd, ProcessResize, ProcessSignal]),
    binary: 'The byte 0, then data for standard input.',
  },
  server: {
    text: Type.Union([ProcessOutputEnd, ProcessExit, ProcessWarning, ProcessError]),
    binary: 'The byte 1 for standard output or 2 for standard error, then the data.',
  },
  closes: { 1000: 'The command has ended.', 1008: policy, 1011: 'An internal error.' },
};

export const SESSION_LOG_SOCKET: WebSocketDescription = {
  when: 'follow=true',
  client: {},
  server: { binary: 'The bytes 01 01 01 for standard output or 02 02 02 for standard error, then the data.' },
  closes: { 1000: 'The command has ended.' },
};

export const TerminalStatus = Type.Object({
  type: Type.Literal('control'),
  status: Type.Enum(['connected', 'error', 'exited'] as const),
  error: Type.Optional(Type.String({ description: 'With `error`.' })),
  exitCode: Type.Optional(Type.Integer({ description: 'With `exited`.' })),
});

export const TERMINAL_SOCKET: WebSocketDescription = {
  subprotocols: { 'X-Daytona-Pty-Exit-Control': 'The server sends `exited` before it closes.' },
  client: { binary: 'Input. Text messages are input too.' },
  server: { text: TerminalStatus, binary: 'Output.' },
  closes: { 1000: 'The shell has ended; the reason is `{"exitCode": 0, "exitReason"?: "…"}`.' },
};

export const InterpreterCode = Type.Object(
  {
    code: Type.String(),
    contextId: Type.Optional(Type.String({ description: 'Default: the context `default`.' })),
    envs: Type.Optional(Env),
    timeout: Type.Optional(Type.Number({ default: 600, description: 'Seconds; 0 for none.' })),
  },
  { description: 'The only message of the client.' },
);
export const InterpreterStdout = Type.Object({ type: Type.Literal('stdout'), text: Type.String() });
export const InterpreterStderr = Type.Object({ type: Type.Literal('stderr'), text: Type.String() });
export const InterpreterException = Type.Object({
  type: Type.Literal('error'),
  name: Type.String({ description: 'As in `ZeroDivisionError`.' }),
  value: Type.String(),
  traceback: Type.String(),
});
export const InterpreterControl = Type.Object({
  type: Type.Literal('control'),
  text: Type.Enum(['completed', 'interrupted'] as const),
});

export const INTERPRETER_SOCKET: WebSocketDescription = {
  client: { text: InterpreterCode },
  server: {
    text: Type.Union([InterpreterStdout, InterpreterStderr, InterpreterException, InterpreterControl]),
  },
  closes: {
    1000: 'The code has ended.',
    1008: policy,
    1011: 'An internal error; the reason says why.',
    4008: 'The timeout has passed.',
  },
};

/** The messages, as components of the OpenAPI document. */
export const webSocketSchemas = {
  ProcessStart,
  ProcessStdinEnd,
  ProcessResize,
  ProcessSignal,
  ProcessOutputEnd,
  ProcessExit,
  ProcessWarning,
  ProcessError,
  TerminalStatus,
  InterpreterCode,
  InterpreterStdout,
  InterpreterStderr,
  InterpreterException,
  InterpreterControl,
} as const;
