/**
 * The toolbox: commands and files of a running sandbox over HTTP, below `/vms/:id/toolbox/` (docs/toolbox.md).
 * Authentication is the data server's business and has happened before any of this.
 */
import { ApiError } from '@releap/contract';
import type { FastifyInstance } from 'fastify';
import type { Logger } from 'pino';
import type { GuestClient } from '../guest/index.ts';
import { type FindEntrypointLog, registerEntrypoint } from './entrypoint.ts';
import { registerExecute } from './execute.ts';
import { registerFiles } from './files.ts';
import type { FindGuest } from './find-guest.ts';
import { registerStream } from './stream.ts';
import { errorBody, ToolboxError } from './toolbox-error.ts';
import { registerUnsupported } from './unsupported.ts';

export interface ToolboxOptions {
  /** The connected agent of a sandbox that runs here. May throw a ToolboxError that says more than "not here". */
  lookup: (vmId: string) => GuestClient | undefined | Promise<GuestClient | undefined>;
  entrypointLog: FindEntrypointLog;
  log: Logger;
}

export async function registerToolbox(
  app: FastifyInstance,
  { lookup, entrypointLog, log }: ToolboxOptions,
): Promise<void> {
  const find: FindGuest = async (vmId) => {
    const client = await lookup(vmId);
    if (client === undefined || client.closed) throw new ToolboxError(404, `no sandbox ${vmId} runs here`);
    return client;
  };
  await app.register(async (scope) => {
    scope.setErrorHandler<Error & { statusCode?: number }>((error, request, reply) => {
      const status = error instanceof ApiError ? error.status : (error.statusCode ?? 500);
      if (status >= 500 && !(error instanceof ApiError || error instanceof ToolboxError))
        request.log.error({ err: error }, 'request failed');
      if (error instanceof ApiError) reply.headers(error.headers);
      return reply.code(status).send(errorBody(status, error.message));
    });
    registerExecute(scope, find);
    registerStream(scope, find, log);
    registerEntrypoint(scope, find, entrypointLog);
    await registerFiles(scope, find);
    registerUnsupported(scope);
  });
}

export { ToolboxError };
