"""Reads and writes Stateline's files in a pipeline's checkpoint.

A path is a directory of this machine or a mount. Anything with a scheme (``hdfs://…``, ``s3a://…``, ``abfss://…``,
``gs://…``) goes through the JVM and Spark's own manager of checkpoint files, with Spark's credentials.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]  # it has no types
from pyspark.sql import SparkSession

from stateline.config.settings import Config
from stateline.deployment.json_files import publish
from stateline.deployment.pipelines.checkpoint_location import is_url
from stateline.spark.session import close_session, spark_session
from stateline_store import ConfigurationError, RetryLaterError

_NOT_FOUND = "java.io.FileNotFoundException"


class CheckpointFolder(Protocol):
    """A pipeline's checkpoint, which need not exist yet. Its text is its location."""

    def read(self, name: str) -> bytes | None:
        """Return the content of this file, or None. Raises `RetryLaterError` if it cannot be read now."""

    def names(self, folder: str) -> list[str]:
        """Return the files in this folder, none if it does not exist. Raises `RetryLaterError`."""

    def keep(self, name: str, content: bytes) -> None:
        """Replace the file's content durably. Readers see the old or the new content. The caller is the only writer.
        Raises `RetryLaterError` if that is refused."""

    def __str__(self) -> str: ...


@dataclass(frozen=True, slots=True)
class LocalFolder:
    """A directory. Files survive a power cut, unlike with Hadoop's local file system."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def read(self, name: str) -> bytes | None:
        with _refused(self.path / name):
            try:
                return (self.path / name).read_bytes()
            except FileNotFoundError:
                return None

    def names(self, folder: str) -> list[str]:
        with _refused(self.path / folder):
            try:
                return [path.name for path in (self.path / folder).iterdir()]
            except FileNotFoundError:
                return []

    def keep(self, name: str, content: bytes) -> None:
        # Modes by the umask, since Spark's executors write here too, perhaps as another user.
        publish(self.path / name, content, mode=0o666, folder_mode=0o777, sync=True, only_writer=True)


@dataclass(frozen=True)
class HadoopFolder:
    """A folder of a Hadoop `FileSystem`, with this session's JVM and Hadoop configuration."""

    session: SparkSession
    url: str

    def __str__(self) -> str:
        return self.url

    def read(self, name: str) -> bytes | None:
        with self._refused("read", name):
            try:
                stream = self._files.open(self._path(name))
            except Py4JJavaError as error:
                if _class_name(error) == _NOT_FOUND:
                    return None
                raise
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

    def names(self, folder: str) -> list[str]:
        with self._refused("read", folder):
            try:
                return [str(status.getPath().getName()) for status in self._files.list(self._path(folder))]
            except Py4JJavaError as error:
                if _class_name(error) == _NOT_FOUND:
                    return []
                raise

    def keep(self, name: str, content: bytes) -> None:
        with self._refused("written", name):
            path = self._path(name)
            self._files.mkdirs(path.getParent())
            stream = self._files.createAtomic(path, True)
            try:
                stream.write(bytearray(content))
                stream.close()  # now the whole file is visible
            except BaseException:
                stream.cancel()
                raise

    def delete(self) -> None:
        """Delete the folder if it exists. Raises `RetryLaterError` if that is refused."""
        with self._refused("deleted", ""):
            self._files.delete(self._path())

    @cached_property
    def _files(self) -> Any:
        """Return Spark's own manager of this checkpoint's files (`CheckpointFileManager`)."""
        jvm: Any = self.session.sparkContext._jvm
        configuration = self.session.sparkContext._jsc.hadoopConfiguration()
        try:
            return jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.create(
                self._path(), configuration
            )
        except Py4JJavaError as error:
            raise ConfigurationError(
                f"pipeline.checkpoint.location: Spark knows no file system of {self.url}: {_root(error)}. Add "
                "its jars (spark.jars, spark.jars.packages). See docs/operations/pipelines-on-a-cluster.md."
            ) from error

    def _path(self, name: str = "") -> Any:
        jvm: Any = self.session.sparkContext._jvm
        return jvm.org.apache.hadoop.fs.Path(f"{self.url}/{name}" if name else self.url)

    @contextmanager
    def _refused(self, done: str, name: str) -> Iterator[None]:
        try:
            yield
        except Py4JJavaError as error:
            raise RetryLaterError(f"{self.url}/{name} cannot be {done} now: {_root(error)}") from error
        except (Py4JError, OSError) as error:
            raise RetryLaterError(f"{self.url}/{name} cannot be {done}: Spark has ended.") from error


def checkpoint_folder(session: SparkSession, location: str) -> CheckpointFolder:
    """Return the checkpoint at this path or URL."""
    return HadoopFolder(session, location) if is_url(location) else LocalFolder(Path(location))


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RetryLaterError(f"{path} cannot be read now: {error.strerror}") from error


def _class_name(error: Py4JJavaError) -> str:
    return str(error.java_exception.getClass().getName())


def _root(error: Py4JJavaError) -> str:
    """Return the innermost cause, in one line."""
    cause = error.java_exception
    while (deeper := cause.getCause()) is not None:
        cause = deeper
    return str(cause.toString()).strip().split("\n")[0][:500]


def delete_checkpoints(config: Config, urls: Iterable[str]) -> None:
    """Delete the checkpoints at these URLs, with a Spark session. Ignores absent ones. Raises the errors of
    `spark_session`, and `RetryLaterError` if a deletion is refused."""
    session = spark_session(config)
    try:
        for url in urls:
            HadoopFolder(session, url).delete()
    finally:
        close_session(session)
