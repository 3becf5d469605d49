/** What the operator of a service does on its machine. */
import type { Registration } from './registration.ts';

export function hostCommands({ program, context, finish }: Registration): void {
  program
    .command('doctor')
    .description('Tell what this machine can do as a host of sandboxes, and what is missing.')
    .option('--no-trial', 'do not start a trial guest to find out about hardware virtualisation')
    .action(async (options: { trial: boolean }) => {
      const { doctor } = await import('../commands/doctor.ts');
      await finish(doctor(context(), options));
    });
}
