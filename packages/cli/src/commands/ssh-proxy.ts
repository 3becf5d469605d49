/** `rlp ssh-proxy VM`: the `ProxyCommand` of ssh for sandboxes. Standard input and output are the SSH connection. */
import type { Duplex } from 'node:stream';
import { SSH_WEBSOCKET_PATH } from '@releap/contract/ssh';
import { createWebSocketStream } from 'ws';
import { CliError } from '../cli-error.ts';
import { findSandbox } from '../client/find-sandbox.ts';
import { openService } from '../client/service.ts';
import { EXIT } from '../exit-codes.ts';
import { SSH_SUFFIX } from './ssh-config.ts';
import type { Context } from '../terminal.ts';
import { openSocket } from '../toolbox/socket.ts';
import { openToolbox } from '../toolbox/toolbox.ts';

export async function sshProxy(context: Context, vm: string): Promise<number> {
  const service = openService(context);
  const name = vm.endsWith(SSH_SUFFIX) ? vm.slice(0, -SSH_SUFFIX.length) : vm;
  const [sandbox] = await Promise.all([findSandbox(service, name), service.regions()]);
  const { stdin, stdout } = context.terminal;
  const { promise, resolve } = Promise.withResolvers<Error | undefined>();
  const opened = Promise.withResolvers<Duplex>();
  await openSocket(await openToolbox(service, sandbox), SSH_WEBSOCKET_PATH, (socket) => {
    const made = createWebSocketStream(socket);
    made.on('error', resolve);
    // Not only `close`: it comes when the other direction has ended too, and ssh waits for the end of this one.
    made.on('end', () => resolve(undefined));
    made.on('close', () => resolve(undefined));
    opened.resolve(made);
  });
  const stream = await opened.promise;
  stdout.on('error', () => stream.destroy());
  const end = (): void => void stream.destroy();
  context.signal.addEventListener('abort', end);
  stdin.pipe(stream);
  stream.pipe(stdout, { end: false });
  try {
    const error = await promise;
    if (error !== undefined && !context.signal.aborted)
      throw new CliError(`the connection to sandbox ${sandbox.id} broke: ${error.message}`, { cause: error });
    return EXIT.ok;
  } finally {
    context.signal.removeEventListener('abort', end);
    stdin.unpipe(stream);
  }
}
