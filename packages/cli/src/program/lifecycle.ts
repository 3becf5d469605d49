/** `rlp stop|start|pause|resume|fork`: what persistent sandboxes can do. */
import type { Registration } from './registration.ts';

export function lifecycleCommands({ program, context, finish, lazy }: Registration): void {
  const commands = [
    ['stop', 'Stop persistent sandboxes: processes end, the disk stays.'],
    ['start', 'Start stopped sandboxes from their disks. A paused one loses its memory.'],
    ['pause', 'Pause persistent sandboxes: processes are frozen, memory and disk are saved.'],
    ['resume', 'Resume paused sandboxes.'],
  ] as const;
  for (const [verb, description] of commands)
    program
      .command(verb)
      .description(description)
      .argument('<vm...>')
      .option('--no-wait', 'return as soon as the service has accepted the request')
      .option('--wait-timeout <duration>', 'how long to wait until it is done (default: 5m)')
      .action(async (vms: string[], options) => {
        const { changeSandboxes } = await import('../commands/lifecycle.ts');
        await finish(changeSandboxes(context(), verb, vms, options));
      });

  program
    .command('fork')
    .summary('copy a persistent sandbox, with its memory')
    .description(
      'Copy a persistent sandbox with its disk, memory and processes, and print the id of the copy. The source goes ' +
        'on; the copy runs too, or is paused if the source is.',
    )
    .argument('<vm>')
    .option('--name <name>', "name of the copy (default: the source's, with -fork)")
    .option('--no-wait', 'print the id at once')
    .option('--wait-timeout <duration>', 'how long to wait until it is there (default: 5m)')
    .action(lazy(async () => (await import('../commands/fork.ts')).fork));
}
