/** `rlp fork VM`: a copy of a persistent sandbox, its memory included. */
import { findSandbox } from '../api/find-sandbox.ts';
import { whenThereIsRoom } from '../api/retry.ts';
import { openService } from '../api/service.ts';
import { waitUntilForked } from '../api/wait-sandbox.ts';
import { EXIT } from '../exit-codes.ts';
import { Spinner } from '../output/spinner.ts';
import { parseDuration } from '../parse/values.ts';
import { type Context, print, printJson } from '../terminal.ts';

export interface ForkOptions {
  name?: string;
  /** False with `--no-wait`. */
  wait?: boolean;
  waitTimeout?: string;
}

const WAIT_MS = 5 * 60_000;

export async function fork(context: Context, vm: string, options: ForkOptions): Promise<number> {
  const deadlineMs =
    options.waitTimeout === undefined ? WAIT_MS : parseDuration('--wait-timeout', options.waitTimeout);
  await using service = openService(context);
  const source = await findSandbox(service, vm);
  using spinner = new Spinner(context, `forking ${source.name}`);
  const child = await whenThereIsRoom((headers) => service.forkSandbox(source.id, options.name, headers), {
    signal: context.signal,
    onRefusal: (reason) => {
      spinner.text = `no room yet (${reason}), trying again`;
    },
  });
  const record =
    options.wait === false
      ? undefined
      : await waitUntilForked(service, child.vm_id, source.status === 'paused' ? 'paused' : 'running', {
          deadlineMs,
          onStatus: (status) => {
            spinner.text = `${child.name}: ${status}`;
          },
        });
  spinner.stop();
  if (context.options.json) printJson(context, { ...child, ...record });
  else print(context, child.vm_id);
  return EXIT.ok;
}
