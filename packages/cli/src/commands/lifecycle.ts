/** `rlp stop|start|pause|resume VM…`: requests all of them, then waits for each. */
import type { SandboxLifecycleResponse, SandboxRecord } from '@releap/contract';
import { SANDBOX_STATUS_GROUPS } from '@releap/contract/wire';
import { type Api, type Change, findSandbox, type Service, waitUntilChanged } from '@releap/sdk';
import { toCliError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { Spinner } from '../output/spinner.ts';
import { waitMs } from '../parse/values.ts';
import { openService } from '../service.ts';
import { type Context, print, printJson } from '../terminal.ts';

export type Verb = 'stop' | 'start' | 'pause' | 'resume';

export interface LifecycleOptions {
  /** False with `--no-wait`. */
  wait?: boolean;
  waitTimeout?: string;
}

/** Longer than the service's deadlines for a start, stop or pause. */
const WAIT_MS = 5 * 60_000;
const { starting } = SANDBOX_STATUS_GROUPS;

interface VerbChange extends Change {
  ask: (api: Api, id: string) => Promise<SandboxLifecycleResponse>;
}

const CHANGES: Record<Verb, VerbChange> = {
  stop: { wanted: 'stopped', passing: ['stopping'], ask: (api, id) => api.stopSandbox({ params: { id } }) },
  start: { wanted: 'running', passing: starting, ask: (api, id) => api.startSandbox({ params: { id } }) },
  pause: { wanted: 'paused', passing: ['pausing'], ask: (api, id) => api.pauseSandbox({ params: { id } }) },
  resume: { wanted: 'running', passing: starting, ask: (api, id) => api.resumeSandbox({ params: { id } }) },
};

interface Outcome {
  vm: string;
  vm_id?: string;
  status?: string;
  error?: string;
}

/** Continues after a failure, and ends with the first one's exit code. */
export async function changeSandboxes(
  context: Context,
  verb: Verb,
  vms: string[],
  options: LifecycleOptions,
): Promise<number> {
  const deadlineMs = waitMs(options, WAIT_MS);
  const service = openService(context);
  let exitCode: number = EXIT.ok;
  const outcomes: Outcome[] = [];
  const attempt = async (outcome: Outcome, work: () => Promise<void>): Promise<boolean> => {
    try {
      await work();
      return true;
    } catch (error) {
      const failure = toCliError(error);
      if (failure === undefined || failure.exitCode === EXIT.interrupted) throw error;
      exitCode ||= failure.exitCode;
      outcome.error = failure.message;
      if (!context.options.json) context.terminal.stderr.write(`rlp: ${failure.message}\n`);
      return false;
    }
  };

  const taken: { outcome: Outcome; sandbox: SandboxRecord }[] = [];
  for (const vm of vms) {
    const outcome: Outcome = { vm };
    outcomes.push(outcome);
    await attempt(outcome, async () => {
      const sandbox = await findSandbox(service, vm);
      const { vm_id, status } = await CHANGES[verb].ask(service.api, sandbox.id);
      Object.assign(outcome, { vm_id, status });
      taken.push({ outcome, sandbox });
    });
  }
  for (const { outcome, sandbox } of taken) {
    const done = await attempt(outcome, async () => {
      if (options.wait !== false) outcome.status = await wait(context, service, verb, sandbox, deadlineMs);
    });
    if (done && !context.options.json) print(context, sandbox.id);
  }
  if (context.options.json) printJson(context, outcomes);
  return exitCode;
}

async function wait(
  context: Context,
  service: Service,
  verb: Verb,
  { id, name }: SandboxRecord,
  deadlineMs: number,
): Promise<string> {
  using spinner = new Spinner(context, `${name}: ${verb}`);
  const record = await waitUntilChanged(service, id, CHANGES[verb], {
    deadlineMs,
    onStatus: spinner.statusOf(name),
  });
  return record.status;
}
