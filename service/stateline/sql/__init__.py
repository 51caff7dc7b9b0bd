"""Answer one SELECT over stores, in a process that can be killed. DuckDB is the engine.

| module      | content                                                                 |
|-------------|-------------------------------------------------------------------------|
| `statement` | the bounds of a statement's text, and the errors of a query              |
| `struct_types` | SQL types of models, Avro, Protobuf and JSON Schema                   |
| `tables`    | a store as tables                                                       |
| `plan`      | DuckDB's plan as the part of each table that a query reads              |
| `messages`  | frames between the server and a query process                           |
| `engine`    | DuckDB, locked down. It runs in a query process                         |
| `sandbox`   | no files, no network, bounded memory                                    |
| `process`   | a query process                                                         |
| `pool`      | the query processes of a server                                         |

It knows no HTTP, no Kafka and no RocksDB. Only `engine` and `process` import DuckDB.
"""
