/** `rlp ssh-proxy VM`: the `ProxyCommand` of ssh for sandboxes. Standard input and output are the SSH connection. */
import { SSH_WEBSOCKET_PATH } from '@releap/contract/ssh';
import { findSandbox, openToolbox } from '@releap/sdk';
import { openStream } from '@releap/sdk/node/socket';
import { CliError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { openService } from '../service.ts';
import { SSH_SUFFIX } from './ssh-config.ts';
import type { Context } from '../terminal.ts';

export async function sshProxy(context: Context, vm: string): Promise<number> {
  const service = openService(context);
  const name = vm.endsWith(SSH_SUFFIX) ? vm.slice(0, -SSH_SUFFIX.length) : vm;
  const [sandbox] = await Promise.all([findSandbox(service, name), service.regions()]);
  const { stdin, stdout } = context.terminal;
  const { promise, resolve } = Promise.withResolvers<Error | undefined>();
  const stream = await openStream(await openToolbox(service, sandbox), SSH_WEBSOCKET_PATH, (made) => {
    made.on('error', resolve);
    // Not only `close`: it comes when the other direction has ended too, and ssh waits for the end of this one.
    made.on('end', () => resolve(undefined));
    made.on('close', () => resolve(undefined));
  });
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
