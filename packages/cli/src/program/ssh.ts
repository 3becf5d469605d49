/** `rlp ssh`, `forward` and `ssh-config`. */
import { collect, type Registration } from './registration.ts';

export function sshCommands({ program, lazy }: Registration): void {
  program
    .command('ssh')
    .summary('open a shell in a sandbox with ssh')
    .description(
      "Open a shell in a sandbox, or run a command by its shell, with this machine's ssh. The API key is in no command line.",
    )
    .argument('<vm>')
    .argument('[command...]', 'after --')
    .option('-L, --local <forward>', 'forward a port of this machine, as ssh -L (repeatable)', collect)
    .option(
      '-D, --dynamic <port>',
      'a SOCKS proxy whose connections leave from the sandbox, as ssh -D',
      collect,
    )
    .option('-t, --tty', 'a terminal for the command')
    .option('-N, --no-command', 'run nothing: for forwards alone')
    .action(lazy(async () => (await import('../commands/ssh.ts')).ssh));

  program
    .command('forward')
    .description('Forward ports of this machine to a sandbox, until Ctrl-C.')
    .argument('<vm>')
    .argument('<forward...>', 'PORT, LOCAL:PORT, or LOCAL:HOST:PORT with a host as the sandbox sees it')
    .action(lazy(async () => (await import('../commands/ssh.ts')).forward));

  program
    .command('ssh-config')
    .summary('make ssh NAME and editors reach sandboxes')
    .description(
      'Print blocks for ~/.ssh/config: of these sandboxes, or of all, and one for NAME.releap. With --write: write them to ' +
        '~/.ssh/releap.config, and include that in ~/.ssh/config.',
    )
    .argument('[vm...]')
    .option('-w, --write', 'write them')
    .action(lazy(async () => (await import('../commands/ssh-config.ts')).sshConfig));

  program
    .command('ssh-proxy', { hidden: true })
    .description(
      'Connect standard input and output to the SSH gateway of a sandbox: the ProxyCommand of ssh.',
    )
    .argument('<vm>')
    .action(lazy(async () => (await import('../commands/ssh-proxy.ts')).sshProxy));
}
