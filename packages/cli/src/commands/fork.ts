/** `rlp fork VM`: a copy of a persistent sandbox, its memory included. */
import { findSandbox, waitUntilForked } from '@releap/sdk';
import { EXIT } from '../exit-codes.ts';
import { retryShown, Spinner } from '../output/spinner.ts';
import { parseDuration } from '../parse/values.ts';
import { openService } from '../service.ts';
import { type Context, print, printJson } from '../terminal.ts';

export interface ForkOptions {
  name?: string;
  /** False with `--no-wait`. */
  wait?: boolean;
  waitTimeout?: string;
}

const WAIT_MS = 5 * 60_000;
/** A fork may respond only after its source has been captured. */
const FORK_MS = 60_000;

export async function fork(context: Context, vm: string, options: ForkOptions): Promise<number> {
  const deadlineMs =
    options.waitTimeout === undefined ? WAIT_MS : parseDuration('--wait-timeout', options.waitTimeout);
  const service = openService(context);
  const source = await findSandbox(service, vm);
  using spinner = new Spinner(context, `forking ${source.name}`);
  const child = await service.api.forkSandbox(
    { params: { id: source.id }, body: { name: options.name } },
    { retry: retryShown(spinner), timeoutMs: FORK_MS },
  );
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
