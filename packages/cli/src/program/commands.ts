/** `rlp run` and `rlp exec`: commands in sandboxes. */
import { type Command, Option } from 'commander';
import { collect, type Registration } from './registration.ts';

export function commandCommands({ program, context, afterDashes, finish, lazy }: Registration): void {
  withCommandOptions(
    withCreateOptions(
      program
        .command('run')
        .summary('create a sandbox and run a command in it')
        .description(
          'Create a sandbox and run a command in it. The sandbox stays afterwards unless --rm is given. ' +
            'Without a command: print the id once the sandbox runs.',
        )
        .argument(
          '[image]',
          'an image name, a registry reference (with a / or a :), or a folder with a Dockerfile (./app)',
        )
        .argument('[command...]', 'after --')
        .option('--from-snapshot <name>', 'create it from a snapshot, in place of an image')
        .option(
          '--dockerfile <path>',
          'build this Dockerfile first, with the folder (default: .) as its context',
        )
        .option('--rm', 'delete the sandbox when the command has ended'),
    ),
  )
    .option('--no-wait', 'without a command: print the id at once')
    .option('--wait-timeout <duration>', 'how long to wait until it runs (default: 15m)')
    .action(async (image: string | undefined, argv: string[], options) => {
      const { run, runSource } = await import('../commands/run.ts');
      const operands = image === undefined ? argv : [image, ...argv];
      const { source, command } = runSource(operands, afterDashes.length, options);
      await finish(run(context(), source, command, options));
    });

  withCommandOptions(
    program
      .command('exec')
      .summary('run a command in a sandbox')
      .description('Run a command in a sandbox that runs, with its streams and its exit code.')
      .argument('<vm>')
      .argument('<command...>', 'after --')
      .option(
        '-e, --env <name=value>',
        'environment of the command; NAME alone takes the value from the present environment',
        collect,
      ),
  ).action(lazy(async () => (await import('../commands/exec.ts')).exec));

  program
    .command('shell')
    .summary('open a terminal in a sandbox that outlives its connection')
    .description(
      'Open a shell on a terminal in a sandbox, or attach to it again: it continues when the connection ends, and when the ' +
        'sandbox is paused and resumed. Ctrl-] detaches.',
    )
    .argument('<vm>')
    .option('--name <name>', 'name of the terminal', 'rlp')
    .action(lazy(async () => (await import('../commands/shell.ts')).shell));
}

function withCommandOptions(command: Command): Command {
  return command
    .option('-w, --workdir <path>', "folder to run it in (default: the image's)")
    .option('-u, --user <user>', "name or number to run it as (default: the image's)")
    .option('-i, --interactive', 'pass stdin on from a terminal too; from a pipe or file it always is')
    .option('-t, --tty', 'give it a terminal')
    .option('-n, --no-stdin', 'never pass stdin on')
    .option('--timeout <duration>', 'end it after this long, as in 30s or 5m');
}

function withCreateOptions(command: Command): Command {
  return command
    .option('--name <name>', 'name of the sandbox (default: made up)')
    .addOption(
      new Option('--mode <mode>', 'a guarantee that may be exceeded, or exclusive cores').choices([
        'burstable',
        'dedicated',
      ]),
    )
    .option('--cpu <cores>', 'guaranteed cores, as in 0.5')
    .option('--vcpus <number>', 'cores, when --cpu is not given')
    .option('--mem <size>', 'memory: MiB, or with m or g (default: 1g)')
    .option('--scratch <size>', 'writable disk: MiB, or with m or g (default: 512m)')
    .option('--gpus <number>', 'dedicated GPUs')
    .option('--docker-data <size>', 'a disk for /var/lib/docker, empty at each boot')
    .option(
      '-e, --env <name=value>',
      'environment of the sandbox; NAME alone takes the value from the present environment',
      collect,
    )
    .option('--secret <name>', 'give it a secret of the project as a placeholder (repeatable)', collect)
    .option(
      '-v, --volume <volume:path[:subpath]>',
      'mount a volume of the project, or a folder of it (repeatable)',
      collect,
    )
    .option('--mount <store:path[:ro|:rw]>', 'mount an object store of the project (repeatable)', collect)
    .option('-p, --port <port[/proto]>', 'make a port reachable from outside', collect)
    .option(
      '--allow <target>',
      'allow nothing outside but this address, network or domain (repeatable)',
      collect,
    )
    .option('--no-egress', 'allow nothing outside')
    .option('--persistent', 'keep its disk over stop and start; it can be paused too')
    .option('--spot', 'cheaper, and evicted when the capacity is needed')
    .option('--region <region>', 'where to place it')
    .addOption(new Option('--arch <arch>', 'processor architecture').choices(['amd64', 'arm64']))
    .option('--cpu-type <class>', 'the least CPU type, and with it the architecture')
    .option('--network-class <class>', 'the least network class')
    .option('--disk-class <class>', 'the least disk class');
}
