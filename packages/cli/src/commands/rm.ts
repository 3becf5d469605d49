/** `rlp rm VM…`: deletes sandboxes. */
import { findSandbox } from '../api/find-sandbox.ts';
import { openService, type Service } from '../api/service.ts';
import { waitUntilDeleted } from '../api/wait-sandbox.ts';
import { CliError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { Spinner } from '../output/spinner.ts';
import { type Context, print, printJson } from '../terminal.ts';

export interface RmOptions {
  force?: boolean;
  wait?: boolean;
}

const WAIT_MS = 180_000;

interface Outcome {
  vm: string;
  vm_id?: string;
  status?: string;
  error?: string;
}

/** Goes on after a failure, and ends with the first one's exit code. */
export async function rm(context: Context, vms: string[], options: RmOptions): Promise<number> {
  await using service = openService(context);
  const outcomes: Outcome[] = [];
  let exitCode: number = EXIT.ok;
  for (const vm of vms) {
    try {
      const outcome = await remove(context, service, vm, options);
      outcomes.push(outcome);
      if (!context.options.json && outcome.vm_id) print(context, outcome.vm_id);
    } catch (error) {
      if (!(error instanceof CliError) || error.exitCode === EXIT.interrupted) throw error;
      exitCode ||= error.exitCode;
      outcomes.push({ vm, error: error.message });
      if (!context.options.json) context.terminal.stderr.write(`rlp: ${error.message}\n`);
    }
  }
  if (context.options.json) printJson(context, outcomes);
  return exitCode;
}

async function remove(context: Context, service: Service, vm: string, options: RmOptions): Promise<Outcome> {
  try {
    const sandbox = await findSandbox(service, vm);
    const answer = await service.deleteSandbox(sandbox.id);
    if (!options.wait) return { vm, vm_id: sandbox.id, status: answer.status };
    using _spinner = new Spinner(context, `deleting ${sandbox.name}`);
    await waitUntilDeleted(service, sandbox.id, { deadlineMs: WAIT_MS });
    return { vm, vm_id: sandbox.id, status: 'deleted' };
  } catch (error) {
    if (options.force && error instanceof CliError && error.status === 404) return { vm, status: 'absent' };
    throw error;
  }
}
