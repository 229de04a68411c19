"""Prints what a wheel requires, without the torch family (installed apart) and without extras."""
import re
import sys
import zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    name = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    for line in wheel.read(name).decode().splitlines():
        if not line.startswith("Requires-Dist:"):
            continue
        requirement = line.split(":", 1)[1].strip()
        if "extra ==" in requirement or re.match(r"(torch|torchvision|torchaudio|torchcodec)\b", requirement):
            continue
        print(requirement)
