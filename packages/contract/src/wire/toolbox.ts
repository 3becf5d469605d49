/**
 * The way into a running sandbox: paths and bodies below `{toolbox_proxy_url}/{vm_id}/`. Where the wire protocol
 * that other SDKs speak has an operation, this is that operation. docs/toolbox.md describes all of them.
 */
import { Type, type Static } from 'typebox';

export const ProcessExecuteRequest = Type.Object({
  command: Type.String({ minLength: 1, description: 'Run by `/bin/sh -c`.' }),
  cwd: Type.Optional(Type.String()),
  env: Type.Optional(Type.Record(Type.String(), Type.String({ writeOnly: true }))),
  timeout: Type.Optional(Type.Number({ exclusiveMinimum: 0, description: 'Seconds.' })),
});
export type ProcessExecuteRequest = Static<typeof ProcessExecuteRequest>;

export const ProcessExecuteResponse = Type.Object({
  exitCode: Type.Integer(),
  result: Type.String({ description: 'Standard output and standard error, as they came.' }),
});
export type ProcessExecuteResponse = Static<typeof ProcessExecuteResponse>;
