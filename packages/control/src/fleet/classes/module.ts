/** Classes of hardware: `GET /cpu-types` and its like, and the operations of the operator. */
import { operations, operatorOperations, type ClassKind, type HardwareClassRecord } from '@releap/contract';
import type { Database } from '@releap/database';
import type { Module } from '../../platform/module.ts';
import type { HardwareClasses } from './hardware-classes.ts';
import { deleteClass, listClasses, putClass } from './operator-statements.ts';

export function classesModule({
  classes,
  database,
}: {
  classes: HardwareClasses;
  database: Database;
}): Module {
  const list = (kind: ClassKind) => async (): Promise<HardwareClassRecord[]> =>
    (await classes.ofKind(kind)).map(({ slug, name, tier, arch }) => ({
      slug,
      name,
      tier,
      ...(arch === null ? {} : { arch }),
    }));
  return {
    name: 'classes',
    routes({ workload, operator }) {
      workload.operation(operations.listCpuTypes, list('cpu_type'));
      workload.operation(operations.listNetworkClasses, list('network_class'));
      workload.operation(operations.listDiskClasses, list('disk_class'));
      operator.operation(operatorOperations.listHardwareClasses, async () => ({
        classes: await listClasses(database.pool),
      }));
      operator.operation(operatorOperations.putHardwareClass, ({ params, body }) =>
        putClass(database, params.kind, params.id, body),
      );
      operator.operation(operatorOperations.deleteHardwareClass, ({ params }) =>
        deleteClass(database, params.kind, params.id),
      );
    },
  };
}
