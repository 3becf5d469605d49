/** The commands that list, read and delete sandboxes, and `rlp doctor`. */
import type { Registration } from './registration.ts';

export function sandboxCommands({ program, lazy }: Registration): void {
  program
    .command('ps')
    .description('List sandboxes that are neither stopped nor failed, newest first.')
    .option('-a, --all', 'stopped and failed ones too')
    .option('-q, --quiet', 'ids only')
    .action(lazy(async () => (await import('../commands/ps.ts')).ps));

  program
    .command('logs')
    .description("Print what the image's entrypoint has written, or the console.")
    .argument('<vm>')
    .option('-f, --follow', 'follow the output until the sandbox ends')
    .option('--entrypoint', "the image's entrypoint (default)")
    .option('--console', "the console: the guest's kernel and agent")
    .action(lazy(async () => (await import('../commands/logs.ts')).logs));

  program
    .command('usage')
    .description(
      'Show what a sandbox has used, by minute or hour (UTC), or what all of the project have, by hour or day.',
    )
    .argument('[vm]')
    .option('--since <duration>', 'how far back (default: 24h)')
    .option('--by <interval>', 'minute, hour or day (default: minute for a sandbox, hour for the project)')
    .option('--live', 'what the sandbox uses now, from its host')
    .action(lazy(async () => (await import('../commands/usage.ts')).usage));

  const net = program.command('net').description("A sandbox's network.");
  net
    .command('denied')
    .description('List what a sandbox was not allowed to send since it runs, newest first.')
    .argument('<vm>')
    .action(lazy(async () => (await import('../commands/net.ts')).denied));

  program
    .command('cp')
    .description('Copy a file or a folder between here and a sandbox. - is stdin or stdout.')
    .argument('<source>', 'PATH or VM:PATH')
    .argument('<target>', 'VM:PATH or PATH')
    .action(lazy(async () => (await import('../commands/cp.ts')).cp));

  program
    .command('ls')
    .description('List files of a sandbox.')
    .argument('<path>', 'VM:PATH')
    .option('-l, --long', 'with mode, owner, size and time')
    .action(lazy(async () => (await import('../commands/ls.ts')).ls));

  program
    .command('edit')
    .description('Open a file of a sandbox in the editor of this machine ($VISUAL or $EDITOR).')
    .argument('<path>', 'VM:PATH')
    .action(lazy(async () => (await import('../commands/edit.ts')).edit));

  program
    .command('rm')
    .description('Delete sandboxes.')
    .argument('<vm...>')
    .option('-f, --force', 'those that do not exist are no error')
    .option('--wait', 'return when they are gone')
    .action(lazy(async () => (await import('../commands/rm.ts')).rm));
}
