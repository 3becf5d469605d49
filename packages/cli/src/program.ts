/** The commands and their options. What a command does is loaded only when it is called. */
import { Command, Option } from 'commander';
import { EXIT } from './exit-codes.ts';
import type { Context, GlobalOptions, Terminal } from './terminal.ts';

export interface ProgramHost {
  terminal: Terminal;
  signal: AbortSignal;
  /** Told the exit code of the command that ran. */
  done: (exitCode: number) => void;
}

const collect = (value: string, before: string[] | undefined): string[] => [...(before ?? []), value];

export function createProgram(host: ProgramHost): Command {
  const program = new Command('rlp')
    .description('Sandboxes on machines of your own: micro-VMs from container images.')
    .option('--url <url>', 'the service (default: RELEAP_URL, else the server of this machine)')
    .option(
      '--api-key <key>',
      'its API key (default: RELEAP_API_KEY, else that of the server of this machine)',
    )
    .option('--json', 'print JSON on stdout, and errors as JSON on stderr', false)
    .version('0.1.0', '-V, --version')
    .configureHelp({ showGlobalOptions: true })
    .configureOutput({
      writeOut: (text) => host.terminal.stdout.write(text),
      // What commander finds wrong is told like every other failure, once, by run-cli.ts.
      writeErr: () => undefined,
    })
    .exitOverride()
    .addHelpText(
      'after',
      '\nVM is the name of a sandbox, its id, or enough of the beginning of its id.' +
        `\nExit codes: ${EXIT.ok} done, ${EXIT.failed} refused or failed, ${EXIT.usage} wrong usage, ${EXIT.unavailable} service or key not usable, ${EXIT.notFound} not found.` +
        `\nrun and exec end with the code of the command; ${EXIT.timeout} its time was over, ${EXIT.noCommand} rlp itself failed, ${EXIT.interrupted} interrupted.`,
    );

  const context = (): Context => ({
    terminal: host.terminal,
    signal: host.signal,
    options: program.opts<GlobalOptions>(),
  });
  const finish = async (running: Promise<number>): Promise<void> => host.done(await running);

  withCommandOptions(
    withCreateOptions(
      program
        .command('run')
        .summary('create a sandbox and run a command in it')
        .description(
          'Create a sandbox and run a command in it. The sandbox stays afterwards unless --rm is given. ' +
            'Without a command: print the id once the sandbox runs.',
        )
        .argument('<image>', 'an image name, or a registry reference (with a / or a :)')
        .argument('[command...]', 'after --')
        .option('--rm', 'delete the sandbox when the command has ended'),
    ),
  )
    .option('--no-wait', 'without a command: print the id at once')
    .option('--wait-timeout <duration>', 'how long to wait until it runs (default: 15m)')
    .action(async (image: string, argv: string[], options) => {
      const { run } = await import('./commands/run.ts');
      await finish(run(context(), image, argv, options));
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
        'environment of the command; NAME alone takes the value from here',
        collect,
      ),
  ).action(async (vm: string, argv: string[], options) => {
    const { exec } = await import('./commands/exec.ts');
    await finish(exec(context(), vm, argv, options));
  });

  program
    .command('ps')
    .description('List sandboxes, newest first.')
    .option('-a, --all', 'deleted ones too, as long as the service lists them')
    .option('-q, --quiet', 'ids only')
    .action(async (options) => {
      const { ps } = await import('./commands/ps.ts');
      await finish(ps(context(), options));
    });

  program
    .command('logs')
    .description("Print what the image's entrypoint has written, or the console.")
    .argument('<vm>')
    .option('-f, --follow', 'go on until the sandbox ends')
    .option('--entrypoint', "the image's entrypoint (default)")
    .option('--console', "the console: the guest's kernel and agent")
    .action(async (vm: string, options) => {
      const { logs } = await import('./commands/logs.ts');
      await finish(logs(context(), vm, options));
    });

  program
    .command('cp')
    .description('Copy a file or a folder between here and a sandbox. - is stdin or stdout.')
    .argument('<source>', 'PATH or VM:PATH')
    .argument('<target>', 'VM:PATH or PATH')
    .action(async (source: string, target: string) => {
      const { cp } = await import('./commands/cp.ts');
      await finish(cp(context(), source, target));
    });

  program
    .command('rm')
    .description('Delete sandboxes.')
    .argument('<vm...>')
    .option('-f, --force', 'those that do not exist are no error')
    .option('--wait', 'return when they are gone')
    .action(async (vms: string[], options) => {
      const { rm } = await import('./commands/rm.ts');
      await finish(rm(context(), vms, options));
    });

  lifecycleCommands(program, context, finish);
  imageCommands(program, context, finish);

  program
    .command('doctor')
    .description('Tell what this machine can do as a host of sandboxes, and what is missing.')
    .option('--no-trial', 'do not start a trial guest to find out about hardware virtualisation')
    .action(async (options: { trial: boolean }) => {
      const { doctor } = await import('./commands/doctor.ts');
      await finish(doctor(context(), options));
    });

  return program;
}

function lifecycleCommands(
  program: Command,
  context: () => Context,
  finish: (running: Promise<number>) => Promise<void>,
): void {
  const commands = [
    ['stop', 'Stop persistent sandboxes: processes end, the disk stays.'],
    ['start', 'Start stopped sandboxes from their disks. A paused one loses its memory.'],
    ['pause', 'Pause persistent sandboxes: processes stand still, memory and disk stay.'],
    ['resume', 'Let paused sandboxes go on where they were.'],
  ] as const;
  for (const [verb, description] of commands)
    program
      .command(verb)
      .description(description)
      .argument('<vm...>')
      .option('--no-wait', 'return as soon as the service has taken it')
      .option('--wait-timeout <duration>', 'how long to wait until it is done (default: 5m)')
      .action(async (vms: string[], options) => {
        const { changeSandboxes } = await import('./commands/lifecycle.ts');
        await finish(changeSandboxes(context(), verb, vms, options));
      });
}

function imageCommands(
  program: Command,
  context: () => Context,
  finish: (running: Promise<number>) => Promise<void>,
): void {
  const images = program.command('images').description('List and create images.');
  images
    .command('ls', { isDefault: true })
    .description('List images, newest first.')
    .action(async () => {
      const { listImages } = await import('./commands/images.ts');
      await finish(listImages(context()));
    });
  images
    .command('create')
    .description('Make an image of a registry reference, or replace the one of that name.')
    .argument('<name>')
    .argument('<reference>', 'as in debian:12 or registry.example.com/app:1.0')
    .option('--docker', 'it is to run Docker inside')
    .option('--region <region>', 'where it is to be at home')
    .option('--no-wait', 'print the id at once')
    .option('--wait-timeout <duration>', 'how long to wait until it is built (default: 30m)')
    .action(async (name: string, reference: string, options) => {
      const { createImage } = await import('./commands/images.ts');
      await finish(createImage(context(), name, reference, options));
    });
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
      new Option('--mode <mode>', 'a guarantee that may be exceeded, or cores of its own').choices([
        'burstable',
        'dedicated',
      ]),
    )
    .option('--cpu <cores>', 'guaranteed cores, as in 0.5')
    .option('--vcpus <number>', 'cores, when --cpu is not given')
    .option('--mem <size>', 'memory: MiB, or with m or g (default: 1g)')
    .option('--scratch <size>', 'writable disk: MiB, or with m or g (default: 512m)')
    .option('--gpus <number>', 'dedicated GPUs')
    .option('--docker-data <size>', 'a disk for /var/lib/docker')
    .option(
      '-e, --env <name=value>',
      'environment of the sandbox; NAME alone takes the value from here',
      collect,
    )
    .option('-p, --port <port[/proto]>', 'make a port reachable from outside', collect)
    .option(
      '--allow <target>',
      'allow nothing outside but this address, network or domain (repeatable)',
      collect,
    )
    .option('--no-egress', 'allow nothing outside')
    .option('--persistent', 'keep its disk over stop and start; it can be paused too')
    .option('--spot', 'cheaper, and reclaimed when the room is needed')
    .option('--region <region>', 'where to place it')
    .addOption(new Option('--arch <arch>', 'processor architecture').choices(['amd64', 'arm64']));
}
