/** Commands of a sandbox. The gateway serves these operations. */
import { Type, type Static } from 'typebox';
import type { Operation, WebSocketDescription } from '../platform/operation.ts';
import { common, Env, errors, invalid, policy } from './shared.ts';

export const ProcessExecuteRequest = Type.Object({
  command: Type.String({ minLength: 1, description: 'Run by `/bin/sh -c`.' }),
  cwd: Type.Optional(Type.String({ description: "Default: the image's working directory." })),
  env: Type.Optional(
    Type.Record(Type.String(), Type.String({ writeOnly: true }), {
      description: "Overrides the sandbox's environment.",
    }),
  ),
  envs: Type.Optional(
    Type.Record(Type.String(), Type.String({ writeOnly: true }), {
      description:
        'Another name of `env`, as SDKs of the compatible protocol have it. `env` takes precedence.',
    }),
  ),
  timeout: Type.Optional(
    Type.Number({ minimum: 0, maximum: 86_400, description: 'Seconds; 360 when absent or 0.' }),
  ),
  user: Type.Optional(
    Type.String({ description: "Name or uid, optionally `:group`. Default: the image's." }),
  ),
});
export type ProcessExecuteRequest = Static<typeof ProcessExecuteRequest>;

export const ProcessExecuteResponse = Type.Object({
  exitCode: Type.Integer(),
  result: Type.String({ description: 'Standard output and standard error, interleaved, as UTF-8.' }),
  truncated: Type.Optional(Type.Boolean({ description: 'The output was longer than 8 MiB.' })),
});
export type ProcessExecuteResponse = Static<typeof ProcessExecuteResponse>;

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

export const toolboxProcessOperations = {
  executeProcess: {
    ...common,
    method: 'POST',
    path: '/process/execute',
    summary: 'Run a command, and respond when it has ended',
    description: 'An unknown command gives 200 with `exitCode` 127.',
    body: ProcessExecuteRequest,
    success: { status: 200, response: { description: 'It has ended.', schema: ProcessExecuteResponse } },
    errors: { ...invalid, ...errors, 408: 'The timeout of the command has passed; it was ended.' },
  },
  streamProcess: {
    ...common,
    method: 'GET',
    path: '/process/stream',
    summary: 'Run a command with its streams, over a WebSocket',
    description: '[toolbox.md](toolbox.md#processstream) describes its messages.',
    websocket: PROCESS_STREAM_SOCKET,
    success: { status: 101, response: { description: 'The connection is a WebSocket.' } },
    errors: { ...invalid, ...errors },
  },
} as const satisfies Record<string, Operation>;
