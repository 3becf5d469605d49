/** `rlp fn`. */
import { type Command, Option } from 'commander';
import { collect, type Registration } from './registration.ts';

export function functionCommands({ program, context, afterDashes, finish, lazy }: Registration): void {
  const fn = program
    .command('fn')
    .summary('HTTP handlers that scale to zero')
    .description('Functions: HTTP handlers that start when requests arrive and end when none do.');

  fn.command('ls', { isDefault: true })
    .description('List functions, newest first.')
    .option('-q, --quiet', 'names only')
    .action(lazy(async () => (await import('../commands/fn.ts')).listFunctions));
  fn.command('deploy')
    .description(
      'Deploy a function, or its next version, and wait until it can serve. It is built from the Dockerfile of FOLDER, or made ' +
        'of an image with --image. What follows -- starts the HTTP server, in place of the entrypoint of the image.',
    )
    .argument('<name>', 'a-z, 0-9 and -')
    .argument('[folder]', 'the build context (default: .)')
    .argument('[handler...]', 'after --')
    .option('--image <image>', 'an image name, or a registry reference (with a / or a :)')
    .option('-f, --file <path>', 'the Dockerfile; - reads it from stdin (default: Dockerfile in the folder)')
    .option('-p, --port <port>', 'where the handler listens (default: 8080)')
    .option('--vcpus <number>', 'cores of an instance (default: 1)')
    .option('--mem <size>', 'memory of an instance: MiB, or with m or g (default: 512m)')
    .option('--scratch <size>', 'writable disk of an instance: MiB, or with m or g (default: 512m)')
    .option(
      '-e, --env <name=value>',
      'environment of the handler; NAME alone takes the present value',
      collect,
    )
    .option('--prewarm', 'restore instances with the handler ready, not started (fn_ready)')
    .option('--when-ready', 'let the version before serve until an instance of this one has listened')
    .option('--timeout <duration>', 'longest time of an invocation (default: 5m)')
    .option('--scaledown <duration>', 'how long an idle instance is kept (default: 60s)')
    .option('--concurrency <number>', 'most requests at a time of one instance (default: 1)')
    .option('--max-instances <number>', 'most instances at a time (default: unlimited)')
    .option('-q, --quiet', 'do not print the log of the build')
    .option('--no-wait', 'print the version as soon as it is accepted')
    .option('--wait-timeout <duration>', 'how long to wait until it can serve (default: 30m)')
    .action(async (name: string, folder: string | undefined, rest: string[], options) => {
      const { deploy } = await import('../commands/fn-deploy.ts');
      const operands = folder === undefined ? rest : [folder, ...rest];
      const handler = operands.slice(operands.length - afterDashes.length);
      await finish(
        deploy(context(), name, operands.slice(0, operands.length - handler.length), handler, options),
      );
    });
  fn.command('show')
    .description('Show a function, its current version, and the newest versions.')
    .argument('<name>')
    .action(lazy(async () => (await import('../commands/fn.ts')).showFunction));
  fn.command('config')
    .description('Change bounds of the current version, from the next invocation on.')
    .argument('<name>')
    .option('--timeout <duration>', 'longest time of an invocation')
    .option('--scaledown <duration>', 'how long an idle instance is kept')
    .option('--concurrency <number>', 'most requests at a time of one instance')
    .option('--max-instances <number>', 'most instances at a time, or none')
    .action(lazy(async () => (await import('../commands/fn.ts')).configureFunction));
  fn.command('public')
    .description('Enable or disable the public endpoint of a function, which is called without an API key.')
    .argument('<name>')
    .argument('<state>', 'on or off')
    .option('--token', 'callers need a token, which is shown once')
    .action(lazy(async () => (await import('../commands/fn.ts')).publishFunction));
  fn.command('logs')
    .description(
      'Print what the handlers of a function have printed; each line names the version and the instance.',
    )
    .argument('<name>')
    .option('-f, --follow', 'until Ctrl-C, with instances that start meanwhile')
    .option('--fn-version <number>', 'only instances of this version')
    .action(lazy(async () => (await import('../commands/fn-numbers.ts')).functionLogs));
  fn.command('calls')
    .description('List the invocations of a function, newest first.')
    .argument('<name>')
    .addOption(
      new Option('--status <status>', 'only those').choices([
        'pending',
        'running',
        'succeeded',
        'failed',
        'timeout',
        'shed',
      ]),
    )
    .addOption(
      new Option('--source <source>', 'only those that came in this way').choices([
        'invoke',
        'public',
        'spawn',
        'map',
        'schedule',
      ]),
    )
    .option('--fn-version <number>', 'only those that this version served')
    .option('-n, --limit <number>', 'how many (default: 20)')
    .action(lazy(async () => (await import('../commands/fn-numbers.ts')).listCalls));
  fn.command('stats')
    .description(
      'Show calls, durations and cost of all functions; or of one, with its calls by hour or day (UTC).',
    )
    .argument('[name]')
    .option('--since <duration>', 'how far back (default: 24h)')
    .option('--by <interval>', 'of one function: hour or day (default: hour)')
    .action(lazy(async () => (await import('../commands/fn-numbers.ts')).functionStats));
  withBody(
    fn
      .command('invoke')
      .description('Call a function, and print what its handler answers.')
      .argument('<name>')
      .argument('[body]', 'the body of the request; - is stdin (default: empty)'),
  )
    .option('-i, --include', 'print the headers of the answer first')
    .action(lazy(async () => (await import('../commands/fn-invoke.ts')).invoke));
  withBody(
    fn
      .command('spawn')
      .description('Call a function without waiting for it, and print the id of the invocation.')
      .argument('<name>')
      .argument('[body]', 'the body of the request; - is stdin (default: empty)'),
  )
    .option('--wait', 'wait for the result and print it, as get --wait does')
    .action(lazy(async () => (await import('../commands/fn-calls.ts')).spawnCall));
  fn.command('map')
    .description(
      'Call a function once for each element of a JSON array, and print the ids of the invocations.',
    )
    .argument('<name>')
    .argument('<file>', 'with the array, of at most 1,000 elements; - is stdin')
    .option('--wait', 'wait for the results and print each as a line of JSON')
    .action(lazy(async () => (await import('../commands/fn-calls.ts')).mapCalls));
  fn.command('get')
    .description('Show how an invocation stands, and print its result.')
    .argument('<id>', 'of the invocation')
    .option('--wait', 'wait until it has ended')
    .action(lazy(async () => (await import('../commands/fn-calls.ts')).getCall));
  fn.command('rm')
    .description('Delete functions, with their versions and schedules.')
    .argument('<name...>')
    .action(lazy(async () => (await import('../commands/fn.ts')).removeFunctions));
  scheduleCommands(fn, lazy);
}

function withBody(command: Command): Command {
  return command
    .option('-f, --file <path>', 'take the body from a file; - is stdin')
    .option('-H, --header <header>', "as in 'Accept: text/plain' (repeatable)", collect);
}

function scheduleCommands(fn: Command, lazy: Registration['lazy']): void {
  const schedule = fn.command('schedule').description('Schedules: calls at the times of a cron expression.');
  schedule
    .command('ls')
    .description('List the schedules of a function, newest first.')
    .argument('<name>')
    .action(lazy(async () => (await import('../commands/fn-schedules.ts')).listSchedules));
  schedule
    .command('add')
    .description('Call a function at the times of a cron expression, and print the id of the schedule.')
    .argument('<name>')
    .argument('<cron>', "minute, hour, day of month, month, day of week in UTC, as in '*/5 * * * *'")
    .argument('[payload]', 'JSON, the body of each call (default: null)')
    .option('--disabled', 'do not fire yet')
    .action(lazy(async () => (await import('../commands/fn-schedules.ts')).addSchedule));
  schedule
    .command('set')
    .description('Change a schedule in place: its times, its payload, or whether it fires.')
    .argument('<name>')
    .argument('<id>')
    .option('--cron <cron>', "minute, hour, day of month, month, day of week in UTC, as in '*/5 * * * *'")
    .option('--payload <json>', 'the body of each call')
    .addOption(new Option('--enable', 'let it fire again, from its next time on').conflicts('disable'))
    .option('--disable', 'do not fire until it is enabled again')
    .action(lazy(async () => (await import('../commands/fn-schedules.ts')).changeSchedule));
  schedule
    .command('rm')
    .description('Delete schedules of a function.')
    .argument('<name>')
    .argument('<id...>')
    .action(lazy(async () => (await import('../commands/fn-schedules.ts')).removeSchedules));
}
